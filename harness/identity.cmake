# Writes OUTPUT, a header that names this build: build_id hashes impls/, harness/, CMakeLists.txt, the
# compiler, its flags and the libraries; git_sha and git_dirty say where the sources stood.
file(GLOB_RECURSE files RELATIVE ${SOURCE_DIR} ${SOURCE_DIR}/impls/* ${SOURCE_DIR}/harness/*)
list(APPEND files CMakeLists.txt)
list(SORT files)
set(text "")
foreach(file IN LISTS files)
  if(NOT file MATCHES "\\.md$|__pycache__")
    file(SHA256 ${SOURCE_DIR}/${file} digest)
    string(APPEND text "${file} ${digest}\n")
  endif()
endforeach()
string(SHA256 source_digest "${text}")
string(SUBSTRING ${source_digest} 0 12 source_id)
string(SHA256 digest "${text}${TOOLCHAIN}\n${LIBRARIES}\n${CUDA} ${CUDA_ARCHITECTURES}\n${HARNESS_FLAGS}")
string(SUBSTRING ${digest} 0 12 build_id)

execute_process(COMMAND git -C ${SOURCE_DIR} rev-parse --short=12 HEAD
  OUTPUT_VARIABLE git_sha OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
execute_process(COMMAND git -C ${SOURCE_DIR} status --porcelain -- impls harness CMakeLists.txt
  OUTPUT_VARIABLE git_status ERROR_QUIET)
if(git_status STREQUAL "")
  set(git_dirty false)
else()
  set(git_dirty true)
endif()

file(WRITE ${OUTPUT}.new "#pragma once
#define ATTN_SOURCE_ID \"${source_id}\"
#define ATTN_BUILD_ID \"${build_id}\"
#define ATTN_GIT_SHA \"${git_sha}\"
#define ATTN_GIT_DIRTY ${git_dirty}
#define ATTN_TOOLCHAIN \"${TOOLCHAIN}\"
#define ATTN_LIBRARIES \"${LIBRARIES}\"
#define ATTN_CUDA_VERSION \"${CUDA}\"
#define ATTN_HARNESS_FLAGS \"${HARNESS_FLAGS}\"
")
file(COPY_FILE ${OUTPUT}.new ${OUTPUT} ONLY_IF_DIFFERENT)
file(REMOVE ${OUTPUT}.new)

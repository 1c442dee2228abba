# The .cu files of the project as C++ on an emulated device: no toolkit, no driver, no GPU needed.

# emulator(<library> <definition ...>): the emulator as a library.
function(emulator library)
  add_library(${library} STATIC cuda_emulator/emulator.cpp cuda_emulator/fiber.cpp
    cuda_emulator/runtime.cpp)
  # Before all others: its cuda_runtime.h and its twins of impls/support stand for the real ones.
  target_include_directories(${library} BEFORE PUBLIC cuda_emulator/include)
  target_include_directories(${library} PUBLIC ${CMAKE_SOURCE_DIR})
  target_link_libraries(${library} PRIVATE attn_warnings fmt::fmt)
  target_compile_options(${library} PRIVATE -O2)
  target_compile_definitions(${library} PRIVATE ${ARGN})
  # What the emulator itself touches is not the kernel's doing.
  if(CMAKE_CXX_FLAGS MATCHES "-fsanitize=(address|thread)")
    string(TOUPPER ${CMAKE_MATCH_1} sanitizer)
    target_compile_options(${library} PRIVATE -fno-sanitize=all)
    target_compile_definitions(${library} PRIVATE CUDA_EMULATOR_${sanitizer})
  endif()
endfunction()
emulator(cuda_emulator)

# emulated(<library> FILES ... [OPTIONS ...]): CUDA sources as an object library of C++.
function(emulated library)
  cmake_parse_arguments(ARG "" "" "FILES;OPTIONS" ${ARGN})
  set_source_files_properties(${ARG_FILES} PROPERTIES LANGUAGE CXX)
  add_library(${library} OBJECT ${ARG_FILES})
  target_link_libraries(${library} PRIVATE attn_warnings PUBLIC cuda_emulator)
  target_compile_options(${library} PRIVATE -O2 -march=native -Wno-unknown-pragmas ${ARG_OPTIONS})
endfunction()

# Every backend of impls/cuda but those that call a library of the vendor's, in a list of their own.
file(GLOB ATTN_CUDA_FILES CONFIGURE_DEPENDS RELATIVE ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/impls/cuda/*.cu)
list(FILTER ATTN_CUDA_FILES EXCLUDE REGEX "/cublas_")
list(TRANSFORM ATTN_CUDA_FILES REPLACE "impls/(.*)/(.*).cu" "\\1.\\2" OUTPUT_VARIABLE ATTN_CUDA_NAMES)
attn_list(emulated_registry ${ATTN_CUDA_NAMES})
list(TRANSFORM ATTN_CUDA_FILES PREPEND ${CMAKE_SOURCE_DIR}/)
emulated(emulated_device FILES ${CMAKE_SOURCE_DIR}/harness/device.cu)
emulated(emulated_backends FILES ${ATTN_CUDA_FILES})
set(ATTN_EMULATED emulated_registry emulated_backends emulated_device cuda_emulator)

# The one conformance suite, over the backends on the emulated device.
attn_test(emulated_conformance_test PREFIX Emulated. SOURCES impls/conformance_test.cpp
  LIBS ${ATTN_EMULATED} attn_harness BACKENDS ${ATTN_CUDA_NAMES}
  FLAGS -DATTN_MUST_RUN="${CMAKE_CURRENT_SOURCE_DIR}/cuda_emulator/must_run.csv"
    -DATTN_KNOWN_FAULTS="${CMAKE_CURRENT_SOURCE_DIR}/impls/known_faults.csv")

# Sanitized code is many times slower.
set(ATTN_LARGEST_N 515)
if(CMAKE_CXX_FLAGS MATCHES "-fsanitize")
  set(ATTN_LARGEST_N 128)
endif()
attn_test(cuda_rungs_test SOURCES cuda_emulator/rungs_test.cpp LIBS ${ATTN_EMULATED} attn_harness
  FLAGS -DATTN_LARGEST_N=${ATTN_LARGEST_N})
target_include_directories(cuda_rungs_test BEFORE PRIVATE cuda_emulator/include)

# The whole command line tool on the emulated device.
add_executable(attnbench_emulated ${CMAKE_SOURCE_DIR}/harness/main.cpp)
target_link_libraries(attnbench_emulated PRIVATE ${ATTN_EMULATED} attn_harness attn_warnings)

# Counting: every access as written, so without optimisation; g++ leaves none out, clang does. The
# sanitizer's own library is not linked: traffic.cpp answers in its place.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND NOT CMAKE_CXX_FLAGS MATCHES "-fsanitize")
  emulated(counted_backends FILES ${ATTN_CUDA_FILES} OPTIONS -O0 -fsanitize=thread -DCUDA_EMULATOR_COUNTS)
  attn_test(cuda_traffic_test SOURCES cuda_emulator/traffic_test.cpp cuda_emulator/traffic.cpp
    LIBS emulated_registry counted_backends emulated_device cuda_emulator attn_harness)
endif()

# The harness's device side: backends with one fault each, as a test and as a tool of their own, and a
# stand-in for NVML, which they find by its path.
add_library(emulated_nvml SHARED cuda_emulator/nvml.cpp)
set_target_properties(emulated_nvml PROPERTIES OUTPUT_NAME nvidia-ml SOVERSION 1
  LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/nvml)
emulated(emulated_planted FILES ${CMAKE_CURRENT_SOURCE_DIR}/cuda_emulator/planted.cu)
set(ATTN_PLANTED emulated_planted emulated_device cuda_emulator attn_harness)
attn_test(device_test SOURCES harness/device_test.cpp LIBS ${ATTN_PLANTED})
target_compile_definitions(device_test PRIVATE ATTN_NVML="$<TARGET_SONAME_FILE:emulated_nvml>")
add_dependencies(device_test emulated_nvml)
add_executable(attnbench_planted ${CMAKE_SOURCE_DIR}/harness/main.cpp)
target_link_libraries(attnbench_planted PRIVATE ${ATTN_PLANTED} attn_warnings)
add_dependencies(attnbench_planted emulated_nvml)

# The emulator's own load and its tests; nvcc compiles the same kernels, so that they stay CUDA.
file(GLOB ATTN_TEST_KERNELS CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/cuda_emulator/kernels/*.cu)
emulated(emulated_kernels FILES ${ATTN_TEST_KERNELS})
add_library(emulated_subjects OBJECT cuda_emulator/subjects.cpp)
target_link_libraries(emulated_subjects PRIVATE attn_warnings PUBLIC cuda_emulator attn_harness)
set(ATTN_SUBJECTS emulated_subjects emulated_kernels ${ATTN_EMULATED} attn_harness)
attn_test(emulated_kernels_test SOURCES cuda_emulator/kernels_test.cpp LIBS ${ATTN_SUBJECTS})
if(ATTN_HAVE_CUDA)
  add_subdirectory(cuda_emulator/kernels)
endif()

# Kernels with one fault each, also on the portable switch of stacks; and the one fault that is no
# program: static shared memory.
attn_test(emulated_faults_test SOURCES cuda_emulator/faults_test.cpp LIBS cuda_emulator fmt::fmt)
target_include_directories(emulated_faults_test BEFORE PRIVATE cuda_emulator/include)
if(NOT CMAKE_CXX_FLAGS MATCHES "-fsanitize")
  emulator(cuda_emulator_ucontext CUDA_EMULATOR_UCONTEXT)
  attn_test(emulated_faults_ucontext_test PREFIX Ucontext. SOURCES cuda_emulator/faults_test.cpp
    LIBS cuda_emulator_ucontext fmt::fmt)
  target_include_directories(emulated_faults_ucontext_test BEFORE PRIVATE cuda_emulator/include)
endif()
add_test(NAME Faults.StaticSharedMemoryDoesNotCompile
  COMMAND ${CMAKE_CXX_COMPILER} -x c++ -std=c++20 -fsyntax-only
    -I ${CMAKE_CURRENT_SOURCE_DIR}/cuda_emulator/include -I ${CMAKE_SOURCE_DIR}
    ${CMAKE_CURRENT_SOURCE_DIR}/cuda_emulator/static_shared.cu)
set_tests_properties(Faults.StaticSharedMemoryDoesNotCompile PROPERTIES
  PASS_REGULAR_EXPRESSION "shared_memory_is_taken_through_ATTN_DYNAMIC_SHARED_only")

# Every synchronisation removed in turn. Orders find wrong values; what they cannot find is for the
# thread sanitizer, which sees every thread of a block as one of its own.
add_executable(mutation cuda_emulator/mutation.cpp)
target_compile_definitions(mutation PRIVATE ATTN_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
target_link_libraries(mutation PRIVATE attn_warnings ${ATTN_SUBJECTS})
add_executable(planted_kernel_race cuda_emulator/planted_race.cpp)
target_link_libraries(planted_kernel_race PRIVATE attn_warnings cuda_emulator)
if(CMAKE_CXX_FLAGS MATCHES "-fsanitize=thread")
  add_dependencies(threaded_tests mutation planted_kernel_race)
  add_test(NAME Mutation.TheThreadSanitizerReports COMMAND mutation sanitizer)
  set_tests_properties(Mutation.TheThreadSanitizerReports PROPERTIES LABELS threaded TIMEOUT 600 COST 1000)
  foreach(memory blocks warps lanes)
    add_test(NAME PlantedKernelRace.${memory} COMMAND planted_kernel_race ${memory})
    set_tests_properties(PlantedKernelRace.${memory} PROPERTIES LABELS threaded
      PASS_REGULAR_EXPRESSION "SUMMARY: ThreadSanitizer: data race .* in .*between_${memory}")
  endforeach()
  add_test(NAME PlantedKernelRace.Ordered COMMAND planted_kernel_race ordered)
  set_tests_properties(PlantedKernelRace.Ordered PROPERTIES LABELS threaded)
elseif(NOT CMAKE_CXX_FLAGS MATCHES "-fsanitize")
  add_test(NAME Mutation.SomeOrderIsWrong COMMAND mutation schedules)
  set_tests_properties(Mutation.SomeOrderIsWrong PROPERTIES TIMEOUT 600 COST 1000)
endif()

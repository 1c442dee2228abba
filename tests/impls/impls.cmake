# Tests of impls/. Files of a backend are found by glob, so a new backend is under test at once.
find_package(OpenMP REQUIRED COMPONENTS CXX)

attn_test(conformance_test THREADED SOURCES impls/conformance_test.cpp impls/check_test.cpp
  impls/half_test.cpp LIBS ${ATTN_BACKENDS} attn_harness BACKENDS ${ATTN_BUILT}
  FLAGS -DATTN_MUST_RUN="${CMAKE_CURRENT_SOURCE_DIR}/impls/must_run.csv"
    -DATTN_KNOWN_FAULTS="${CMAKE_CURRENT_SOURCE_DIR}/impls/known_faults.csv")

attn_test(child_test SOURCES impls/child_test.cpp LIBS attn_child attn_device attn_harness registry_stub)

# Counts, digits and an example need no sanitizer: of the same kernels conformance_test sees every access.
if(NOT CMAKE_CXX_FLAGS MATCHES "-fsanitize")
  # The kernel text of each cpu backend on a counting scalar, one program each.
  file(GLOB ATTN_CPU_FILES CONFIGURE_DEPENDS RELATIVE ${CMAKE_SOURCE_DIR}
    ${CMAKE_SOURCE_DIR}/impls/cpu/*.cpp)
  foreach(file IN LISTS ATTN_CPU_FILES)
    get_filename_component(stem ${file} NAME_WE)
    attn_test(counting_cpu_${stem} SOURCES impls/counting_test.cpp LIBS registry_stub attn_device attn_harness
      FLAGS -DATTN_BACKEND_FILE="${file}" -DATTN_BACKEND=cpu_${stem} -DATTN_SUITE=Counting_${stem})
  endforeach()

  if(ATTN_HAVE_HWY)
    attn_test(exp_test SOURCES impls/exp_test.cpp LIBS hwy::hwy FLAGS ${ATTN_FOLDER_simd_FLAGS})
  endif()

  # PyTorch's backends with a stub for PyTorch. The sanitizers forbid the way in which it is loaded.
  add_library(torch_loader_stub MODULE impls/torch_loader_stub.cpp)
  set_target_properties(torch_loader_stub PROPERTIES OUTPUT_NAME attn_torch
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/torch_loader_stub)
  file(GLOB ATTN_TORCH_FILES CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/impls/torch/*.cpp)
  attn_test(torch_loader_test SOURCES impls/torch_loader_test.cpp ${ATTN_TORCH_FILES}
    LIBS OpenMP::OpenMP_CXX ${CMAKE_DL_LIBS})
  target_link_options(torch_loader_test PRIVATE
    -Wl,-rpath,$<TARGET_FILE_DIR:torch_loader_stub>)
  add_dependencies(torch_loader_test torch_loader_stub)

  # `omp simd` only: no thread is started.
  attn_test(vector_math_test SOURCES impls/vector_math_test.cpp FLAGS -O3 -march=native -fno-trapping-math -fopenmp-simd)

  # The README's backend as it stands there, beside one that it is compared with.
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/README.md)
  file(READ ${CMAKE_SOURCE_DIR}/README.md ATTN_README)
  string(REGEX MATCH "<!-- example:begin -->\n```cpp\n(.*)```\n<!-- example:end -->" ATTN_EXAMPLE "${ATTN_README}")
  set(ATTN_EXAMPLE "${CMAKE_MATCH_1}")
  if(NOT ATTN_EXAMPLE)
    message(FATAL_ERROR "README.md: no C++ between <!-- example:begin --> and <!-- example:end -->; the tests compile it")
  endif()
  file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/generated/two_pass.cpp CONTENT "@ATTN_EXAMPLE@" @ONLY)
  attn_list(example_registry cpu.naive cpu.two_pass)
  add_executable(attnbench_example ${CMAKE_SOURCE_DIR}/harness/main.cpp
    ${CMAKE_CURRENT_BINARY_DIR}/generated/two_pass.cpp ${CMAKE_SOURCE_DIR}/impls/cpu/naive.cpp)
  target_compile_options(attnbench_example PRIVATE ${ATTN_FOLDER_cpu_FLAGS})
  target_link_libraries(attnbench_example PRIVATE example_registry attn_device attn_harness attn_warnings)
endif()

if(ATTN_HAVE_HWY)
  attn_test(simd_targets_test SOURCES impls/simd_targets_test.cpp
    LIBS ${ATTN_BACKENDS} attn_harness FLAGS ${ATTN_FOLDER_simd_FLAGS})

  # All tests of impls/simd and nothing else, in one program, without the harness's many files and what
  # they link, for an emulated CPU: scripts/other_cpus.sh.
  set(ATTN_DECLARATIONS "")
  set(ATTN_ENTRIES "")
  set(ATTN_FLAG_LINES "")
  file(GLOB ATTN_SIMD_FILES CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/impls/simd/*.cpp)
  foreach(file IN LISTS ATTN_SIMD_FILES)
    get_filename_component(stem ${file} NAME_WE)
    string(APPEND ATTN_DECLARATIONS "Backend simd_${stem}();\n")
    string(APPEND ATTN_ENTRIES "      {\"simd.${stem}\", {}, simd_${stem}()},\n")
  endforeach()
  configure_file(${CMAKE_SOURCE_DIR}/harness/registry.cpp.in
    ${CMAKE_CURRENT_BINARY_DIR}/generated/simd_registry.cpp @ONLY)
  set(ATTN_SIMD_PARTS buffers.cpp device_none.cpp layer.cpp work.cpp)
  list(TRANSFORM ATTN_SIMD_PARTS PREPEND ${CMAKE_SOURCE_DIR}/harness/)
  add_executable(simd_alone_test EXCLUDE_FROM_ALL impls/exp_test.cpp impls/conformance_test.cpp
    impls/simd_targets_test.cpp ${ATTN_SIMD_FILES} ${CMAKE_CURRENT_BINARY_DIR}/generated/simd_registry.cpp
    ${ATTN_SIMD_PARTS})
  target_include_directories(simd_alone_test PRIVATE ${CMAKE_SOURCE_DIR})
  target_compile_options(simd_alone_test PRIVATE ${ATTN_FOLDER_simd_FLAGS}
    -DATTN_MUST_RUN="${CMAKE_CURRENT_SOURCE_DIR}/impls/must_run.csv"
    -DATTN_KNOWN_FAULTS="${CMAKE_CURRENT_SOURCE_DIR}/impls/known_faults.csv")
  target_link_libraries(simd_alone_test PRIVATE attn_warnings GTest::gtest_main hwy::hwy OpenMP::OpenMP_CXX
    fmt::fmt)
endif()

if(ATTN_HAVE_BLAS)
  file(GLOB ATTN_BLAS_FILES CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/impls/blas/*.cpp)
  set(ATTN_BLAS_LINES "")
  foreach(file IN LISTS ATTN_BLAS_FILES)
    get_filename_component(stem ${file} NAME_WE)
    string(APPEND ATTN_BLAS_LINES "ATTN_BACKEND(blas_${stem})\n")
  endforeach()
  file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/generated/blas_backends.inc
    CONTENT "@ATTN_BLAS_LINES@" @ONLY)
  # Everything from source and no OpenBLAS on the link line.
  attn_test(blas_counting_test THREADED
    SOURCES impls/blas_counting_test.cpp ${ATTN_BLAS_FILES} ${CMAKE_SOURCE_DIR}/harness/layer.cpp
      ${CMAKE_SOURCE_DIR}/harness/work.cpp ${CMAKE_SOURCE_DIR}/harness/buffers.cpp
    LIBS OpenMP::OpenMP_CXX fmt::fmt FLAGS -DATTN_HAVE_BLAS)
  target_include_directories(blas_counting_test SYSTEM PRIVATE ${ATTN_CBLAS_INCLUDE})
  target_include_directories(blas_counting_test PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/generated)

  attn_test(one_pool_test THREADED SOURCES impls/one_pool_test.cpp LIBS ${ATTN_BACKENDS} attn_harness)

  add_library(attn_pthread_flavour_stub SHARED impls/pthread_flavour_stub.cpp)
  add_executable(two_pools_test impls/two_pools_test.cpp)
  target_link_libraries(two_pools_test PRIVATE attn_warnings ${ATTN_BACKENDS} attn_harness GTest::gtest_main)
  add_dependencies(two_pools_test attn_pthread_flavour_stub)
  add_test(NAME TwoPools COMMAND two_pools_test)
  set_tests_properties(TwoPools PROPERTIES ENVIRONMENT
    "LD_PRELOAD=$<TARGET_FILE:attn_pthread_flavour_stub>;ASAN_OPTIONS=verify_asan_link_order=0")

  # A sanitizer's instrumentation keeps loops from being vectorised.
  if(NOT CMAKE_CXX_FLAGS MATCHES "sanitize")
    add_test(NAME BlasIsVectorised COMMAND ${CMAKE_COMMAND}
      -DNM=${CMAKE_NM} -DOBJDUMP=${CMAKE_OBJDUMP} -DPROCESSOR=${CMAKE_SYSTEM_PROCESSOR}
      -DOBJECTS=$<JOIN:$<TARGET_OBJECTS:attn_impls_blas>,$<COMMA>>
      -DCONTROL=$<JOIN:$<TARGET_OBJECTS:attn_impls_cpu>,$<COMMA>>
      -P ${CMAKE_CURRENT_SOURCE_DIR}/impls/vectorised.cmake)
  endif()
endif()

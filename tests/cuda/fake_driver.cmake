# SPDX-License-Identifier: Apache-2.0
#
# libfake_driver.so: a CUDA driver without a GPU (tests/cuda/fake_driver.h), and libfake_nvml.so beside
# it. Included by tests/CMakeLists.txt before the test programs, which learn its path as FAKE_DRIVER.

file(GLOB fake_driver_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/fake_*.c)
list(FILTER fake_driver_sources EXCLUDE REGEX "/fake_nvml\\.c$")
add_library(fake_driver SHARED ${fake_driver_sources})
target_compile_options(fake_driver PRIVATE ${ATTN_C_FLAGS} -Wconversion)
target_include_directories(fake_driver PRIVATE ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR}
                           ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
# It stands in for a GPU, of which sanitizers see nothing either: guarded memory shows a wrong pointer.
set(fake_compute_options -O3)
if(ATTN_SANITIZE)
    list(APPEND fake_compute_options -fno-sanitize=all)
endif()
set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/fake_compute.c PROPERTIES
    COMPILE_OPTIONS "${fake_compute_options}")
target_link_libraries(fake_driver PRIVATE Threads::Threads m)
set_target_properties(fake_driver PROPERTIES C_VISIBILITY_PRESET hidden
    LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)

add_library(fake_nvml SHARED ${CMAKE_CURRENT_LIST_DIR}/fake_nvml.c)
target_compile_options(fake_nvml PRIVATE ${ATTN_C_FLAGS} -Wconversion)
set_target_properties(fake_nvml PROPERTIES C_VISIBILITY_PRESET hidden
    LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)

add_compile_definitions(FAKE_DRIVER="$<TARGET_FILE:fake_driver>")

# SPDX-License-Identifier: Apache-2.0
#
# libattn_mpi: attention over the ranks of an MPI communicator (include/attn_mpi.h), if there is an
# MPI. Sanitizers report what MPI itself leaks, and a cross compiler finds the wrong one: AUTO leaves
# it out there.
#
# Invariant: libattn does not depend on it; without MPI all else is built as before.

set(ATTN_MPI AUTO CACHE STRING "libattn_mpi: ON, OFF, or AUTO (if MPI is found)")
set_property(CACHE ATTN_MPI PROPERTY STRINGS AUTO ON OFF)

set(mpi_wanted ${ATTN_MPI})
if(ATTN_MPI STREQUAL AUTO AND (NOT PROJECT_IS_TOP_LEVEL OR CMAKE_CROSSCOMPILING OR ATTN_SANITIZE))
    set(mpi_wanted OFF)
endif()
if(mpi_wanted STREQUAL OFF)
    return()
elseif(mpi_wanted STREQUAL ON)
    find_package(MPI REQUIRED COMPONENTS C)
else()
    find_package(MPI QUIET COMPONENTS C)
endif()
if(NOT MPI_C_FOUND)
    message(STATUS "libattn_mpi is left out: no MPI was found (Debian: libopenmpi-dev, openmpi-bin)")
    return()
endif()

file(GLOB mpi_sources CONFIGURE_DEPENDS src/mpi/*.c)
add_library(attn_mpi SHARED ${mpi_sources})
add_library(attn::attn_mpi ALIAS attn_mpi)
target_include_directories(attn_mpi PRIVATE src)
target_compile_options(attn_mpi PRIVATE ${ATTN_C_FLAGS} -Wconversion)
target_link_libraries(attn_mpi PUBLIC attn MPI::MPI_C)
target_link_options(attn_mpi PRIVATE ${ATTN_SHARED_LINK_FLAGS})
set_target_properties(attn_mpi PROPERTIES
    VERSION ${PROJECT_VERSION} SOVERSION ${ATTN_ABI} C_VISIBILITY_PRESET hidden LINKER_LANGUAGE C
    INSTALL_RPATH "$ORIGIN")

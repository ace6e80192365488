# liblockstep_mpi.so: all that links an MPI library. Loaded by the runtime library where the backend is chosen; where
# this machine has no MPI it is not built, the backend is refused by name, and its tests are listed as not run.
set(MPI_CXX_SKIP_MPICXX ON)
find_package(MPI COMPONENTS CXX QUIET)
if(MPI_CXX_FOUND)
  message(STATUS "MPI ${MPI_CXX_VERSION} at ${MPI_CXX_COMPILER}; its library is part of the backend mpi")
  lockstep_plugin(mpi MPI::MPI_CXX)
  target_link_options(lockstep_mpi PRIVATE -Wl,--as-needed)
else()
  message(NOTICE "no MPI (Debian: libopenmpi-dev openmpi-bin): the backend mpi is not built, its tests do not run")
endif()

# lockstep_mpi_tests(<names>...): tests that run ranks over the backend.
function(lockstep_mpi_tests)
  foreach(test ${ARGN})
    if(TARGET lockstep_mpi)
      add_dependencies(${test} lockstep_mpi)
    else()
      set_tests_properties(${test} PROPERTIES DISABLED TRUE)
    endif()
  endforeach()
endfunction()

# The kernels of lockstep/nn/cuda compiled as C++ for the emulation of tests/support/cuda, which runs them on the CPU. Not for
# the preset cuda: there nvcc compiles them.

# A GPU refuses accesses that are not aligned, a CPU does them: compiled in is a check that traps.
set(LOCKSTEP_TRAP_MISALIGNED -fsanitize=alignment -fsanitize-undefined-trap-on-error CACHE INTERNAL "")

# lockstep_emulated_kernels(<target> <type of library> [<kernels left out>...])
function(lockstep_emulated_kernels target type)
  file(GLOB kernels CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/lockstep/nn/cuda/*.cu)
  foreach(kernel ${ARGN})
    list(REMOVE_ITEM kernels ${CMAKE_SOURCE_DIR}/lockstep/nn/cuda/${kernel})
  endforeach()
  file(GLOB emulation CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/support/cuda/*.cpp)
  set_source_files_properties(${kernels} PROPERTIES LANGUAGE CXX)   # -x c++
  add_library(${target} ${type} EXCLUDE_FROM_ALL ${kernels} ${emulation})
  target_include_directories(${target} BEFORE PUBLIC ${CMAKE_SOURCE_DIR}/tests/support/cuda)
  target_compile_options(${target} PUBLIC -ffp-contract=off   # the bits of cuda_math.h wherever it is compiled
                                   PRIVATE ${LOCKSTEP_TRAP_MISALIGNED})
endfunction()

# A library for the tests of the kernels, emulation_tests (tests/emulation); room_nn has the functions of those two too.
lockstep_emulated_kernels(emulated_kernels STATIC tensors.cu state_space_tensors.cu)
target_link_libraries(emulated_kernels PUBLIC room_nn)
# Few blocks: that a block does several rows or pieces then takes no large tensors.
target_compile_definitions(emulated_kernels PRIVATE LOCKSTEP_MOST_BLOCKS=3)

file(GLOB tests CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/emulation/*_test.cpp)
set_source_files_properties(${CMAKE_SOURCE_DIR}/tests/emulation/emulation_test.cpp PROPERTIES
  COMPILE_OPTIONS "${LOCKSTEP_TRAP_MISALIGNED}" SKIP_PRECOMPILE_HEADERS ON)   # it has kernels of its own
lockstep_tests(emulation runtime emulated_kernels ${tests})

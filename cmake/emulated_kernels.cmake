# The kernels of lockstep/nn/cuda compiled as C++ for the emulation of tests/support/cuda, which runs them on the CPU, as a
# library emulated_kernels; and their tests, emulation_tests (tests/emulation). Not for the preset cuda: there nvcc compiles
# them. tests/support/gpu compiles them once more, with tensors.cu, whose functions room_nn has too.
file(GLOB kernels CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/lockstep/nn/cuda/*.cu)
list(FILTER kernels EXCLUDE REGEX "/tensors\\.cu$")
file(GLOB emulation CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/support/cuda/*.cpp)
set_source_files_properties(${kernels} PROPERTIES LANGUAGE CXX)   # -x c++
add_library(emulated_kernels STATIC EXCLUDE_FROM_ALL ${kernels} ${emulation})
target_link_libraries(emulated_kernels PUBLIC room_nn)
target_include_directories(emulated_kernels BEFORE PUBLIC ${CMAKE_SOURCE_DIR}/tests/support/cuda)
# Few blocks: that a block does several rows or pieces then takes no large tensors.
target_compile_definitions(emulated_kernels PRIVATE LOCKSTEP_MOST_BLOCKS=3)
target_compile_options(emulated_kernels PUBLIC -ffp-contract=off)   # the bits of cuda_math.h wherever it is compiled
# A GPU refuses accesses that are not aligned, a CPU does them: compiled in is a check that traps.
set(trap_misaligned -fsanitize=alignment -fsanitize-undefined-trap-on-error)
target_compile_options(emulated_kernels PRIVATE ${trap_misaligned})

file(GLOB tests CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/emulation/*_test.cpp)
set_source_files_properties(${CMAKE_SOURCE_DIR}/tests/emulation/emulation_test.cpp PROPERTIES
  COMPILE_OPTIONS "${trap_misaligned}" SKIP_PRECOMPILE_HEADERS ON)   # it has kernels of its own
lockstep_tests(emulation runtime emulated_kernels ${tests})

# The kernels of lockstep/nn/cuda compiled as C++ for the emulation of tests/support/cuda, which runs them on the CPU:
#   emulated_kernels    objects of all of them and of the emulation, for who stands in for a whole device
#   emulated_launches   a library of the same without tensors.cu, whose functions room_nn has too
# and their tests, emulation_tests (tests/emulation). Not for the preset cuda: there nvcc compiles them.
file(GLOB kernels CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/lockstep/nn/cuda/*.cu)
file(GLOB emulation CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/support/cuda/*.cpp)
set_source_files_properties(${kernels} PROPERTIES LANGUAGE CXX)   # -x c++
add_library(emulated_kernels OBJECT EXCLUDE_FROM_ALL ${kernels} ${emulation})
target_link_libraries(emulated_kernels PUBLIC room_base lockstep_torch)
target_include_directories(emulated_kernels BEFORE PUBLIC ${CMAKE_SOURCE_DIR}/tests/support/cuda)
# Few blocks: that a block does several rows or pieces then takes no large tensors.
target_compile_definitions(emulated_kernels PRIVATE LOCKSTEP_MOST_BLOCKS=3)
target_compile_options(emulated_kernels PRIVATE -ffp-contract=off)   # the bits of cuda_math.h wherever it is compiled
# A GPU refuses accesses that are not aligned, a CPU does them: compiled in is a check that traps.
set(trap_misaligned -fsanitize=alignment -fsanitize-undefined-trap-on-error)
target_compile_options(emulated_kernels PRIVATE ${trap_misaligned})

set(launches $<FILTER:$<TARGET_OBJECTS:emulated_kernels>,EXCLUDE,/tensors\\.cu>)
add_library(emulated_launches STATIC EXCLUDE_FROM_ALL ${launches})
add_dependencies(emulated_launches emulated_kernels)
set_target_properties(emulated_launches PROPERTIES LINKER_LANGUAGE CXX)
target_include_directories(emulated_launches BEFORE INTERFACE ${CMAKE_SOURCE_DIR}/tests/support/cuda)
target_compile_options(emulated_launches INTERFACE -ffp-contract=off)
target_link_libraries(emulated_launches INTERFACE room_nn)

file(GLOB tests CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/emulation/*_test.cpp)
set_source_files_properties(${CMAKE_SOURCE_DIR}/tests/emulation/emulation_test.cpp PROPERTIES
  COMPILE_OPTIONS "${trap_misaligned}" SKIP_PRECOMPILE_HEADERS ON)   # it has kernels of its own
lockstep_tests(emulation runtime emulated_launches ${tests})

# The preset cuda: the kernels of lockstep/nn/cuda in place of *_kernels_aten.cpp, and liblockstep_nccl.so. Wants a CUDA
# build of PyTorch in LOCKSTEP_TORCH and nvcc of its major version. Where there is no NCCL (beside that PyTorch, in the system or
# where LOCKSTEP_NCCL says) its library is not built, and the backend is refused by name.
if(NOT EXISTS "${LOCKSTEP_TORCH}/lib/libc10_cuda.so")
  message(FATAL_ERROR "the preset cuda needs a CUDA build of PyTorch, and '${LOCKSTEP_TORCH}' is none: set LOCKSTEP_TORCH to "
                      "the folder of one (the one that holds include/ and lib/).")
endif()
# A toolkit of PyPI's packages has the runtime library only under its version, which CMake does not look for.
set(toolkit ${CMAKE_CUDA_COMPILER_TOOLKIT_ROOT})
file(GLOB versioned ${toolkit}/lib/libcudart.so.*)
if(versioned AND NOT EXISTS ${toolkit}/lib/libcudart.so AND NOT EXISTS ${toolkit}/lib64/libcudart.so)
  list(GET versioned 0 versioned)
  set(CUDA_CUDART ${versioned} CACHE FILEPATH "")
  set(CUDA_cudart_LIBRARY ${versioned} CACHE FILEPATH "")
endif()
find_package(CUDAToolkit REQUIRED)

file(GLOB kernels CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/lockstep/nn/cuda/*.cu)
add_library(lockstep_kernels OBJECT ${kernels})
target_include_directories(lockstep_kernels PRIVATE ${CMAKE_SOURCE_DIR})
target_link_libraries(lockstep_kernels PRIVATE lockstep_torch CUDA::cudart)
set_target_properties(lockstep_kernels PROPERTIES
  CUDA_STANDARD 20 CUDA_STANDARD_REQUIRED ON CUDA_RUNTIME_LIBRARY Shared
  COMPILE_OPTIONS "-lineinfo")   # in place of the options of the folder, which are g++'s

get_target_property(sources room_nn SOURCES)
list(FILTER sources EXCLUDE REGEX "/(cuda|state_space)_kernels_aten\\.cpp$")
set_property(TARGET room_nn PROPERTY SOURCES ${sources})
foreach(target room_nn runtime)   # of a room the library takes what it compiles itself
  target_sources(${target} PRIVATE $<TARGET_OBJECTS:lockstep_kernels>)
  target_link_libraries(${target} PRIVATE CUDA::cudart)
endforeach()

set(LOCKSTEP_NCCL "" CACHE PATH "Folder that holds include/nccl.h and lib/libnccl.so.2; empty: PyTorch's, or the system's")
set(hints ${LOCKSTEP_NCCL} ${LOCKSTEP_TORCH}/../nvidia/nccl)
find_path(LOCKSTEP_NCCL_INCLUDE nccl.h HINTS ${hints} PATH_SUFFIXES include)
find_library(LOCKSTEP_NCCL_LIBRARY NAMES libnccl.so.2 libnccl.so HINTS ${hints} PATH_SUFFIXES lib)
if(LOCKSTEP_NCCL_INCLUDE AND LOCKSTEP_NCCL_LIBRARY)
  lockstep_plugin(nccl lockstep_torch CUDA::cudart ${LOCKSTEP_NCCL_LIBRARY})
  target_include_directories(lockstep_nccl SYSTEM PRIVATE ${LOCKSTEP_NCCL_INCLUDE})
else()
  message(NOTICE "no NCCL (nccl.h: ${LOCKSTEP_NCCL_INCLUDE}, library: ${LOCKSTEP_NCCL_LIBRARY}): the backend nccl is not built")
endif()

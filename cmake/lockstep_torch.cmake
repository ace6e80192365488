# LibTorch is an installed PyTorch wheel. It is looked for in LOCKSTEP_TORCH (cache or environment), then in .venv,
# then in the python3 on the PATH; torch itself is never imported.
if(NOT LOCKSTEP_TORCH)
  set(LOCKSTEP_TORCH "$ENV{LOCKSTEP_TORCH}")
endif()
if(NOT LOCKSTEP_TORCH)
  foreach(python ${CMAKE_SOURCE_DIR}/.venv/bin/python python3)
    execute_process(
      COMMAND ${python} -c "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"
      OUTPUT_VARIABLE LOCKSTEP_TORCH OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(LOCKSTEP_TORCH)
      break()
    endif()
  endforeach()
endif()
set(LOCKSTEP_TORCH "${LOCKSTEP_TORCH}" CACHE PATH "Folder of the installed torch package" FORCE)
if(NOT EXISTS "${LOCKSTEP_TORCH}/include/ATen/core/Tensor.h")
  message(FATAL_ERROR "no PyTorch at '${LOCKSTEP_TORCH}'. Run scripts/setup.sh, or set LOCKSTEP_TORCH to the folder of an "
                      "installed torch package (the one that holds include/ and lib/).")
endif()
file(STRINGS "${LOCKSTEP_TORCH}/version.py" version_line REGEX "^__version__")
string(REGEX MATCH "[0-9][^']*" LOCKSTEP_TORCH_VERSION "${version_line}")
message(STATUS "LibTorch ${LOCKSTEP_TORCH_VERSION} at ${LOCKSTEP_TORCH}")

add_library(lockstep_torch INTERFACE)
target_include_directories(lockstep_torch SYSTEM INTERFACE
  $<BUILD_INTERFACE:${LOCKSTEP_TORCH}/include> $<BUILD_INTERFACE:${LOCKSTEP_TORCH}/include/torch/csrc/api/include>)
foreach(library c10 torch_cpu torch c10_cuda torch_cuda)
  set(file "${LOCKSTEP_TORCH}/lib/lib${library}.so")
  if(EXISTS "${file}")
    target_link_libraries(lockstep_torch INTERFACE $<BUILD_INTERFACE:${file}>)
  endif()
endforeach()
target_compile_definitions(lockstep_torch INTERFACE AT_PER_OPERATOR_HEADERS)
# Without -fopenmp LibTorch's at::parallel_for is a plain loop. The run-time library is torch's own copy: one pool of threads.
target_compile_options(lockstep_torch INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fopenmp>)
file(GLOB openmp "${LOCKSTEP_TORCH}/lib/libgomp*.so*" "${LOCKSTEP_TORCH}/../torch.libs/libgomp*.so*")
if(openmp)
  list(GET openmp 0 openmp)
  target_link_libraries(lockstep_torch INTERFACE $<BUILD_INTERFACE:${openmp}>)
else()
  target_link_options(lockstep_torch INTERFACE -fopenmp)
endif()
if(EXISTS "${LOCKSTEP_TORCH}/lib/libtorch_cuda.so")
  # It registers its operators when it is loaded, and nothing of ours calls it by name: a linker that drops what is not called
  # (Ubuntu's does) would leave a program without a GPU. What it needs itself it finds when it is loaded.
  target_link_options(lockstep_torch INTERFACE $<BUILD_INTERFACE:-Wl,--no-as-needed,--allow-shlib-undefined>)
endif()
# MKL's and OpenMP's libraries sit beside torch's.
target_link_options(lockstep_torch INTERFACE $<BUILD_INTERFACE:-Wl,-rpath,${LOCKSTEP_TORCH}/lib>)

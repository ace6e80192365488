# Precompiled headers: of the time that a file with LibTorch or GoogleTest takes, half would go into the same few headers.
# One for what sees LibTorch, one for its tests, one for the tests of the other rooms.

# lockstep_precompiled(<name> <header> <libraries>...): compiles the header once, as target <name>.
function(lockstep_precompiled name header)
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/${name}.cpp CONTENT "")  # rewritten only where it differs
  add_library(${name} OBJECT ${CMAKE_BINARY_DIR}/${name}.cpp)
  target_link_libraries(${name} PRIVATE ${ARGN})
  target_precompile_headers(${name} PRIVATE ${CMAKE_SOURCE_DIR}/cmake/${header})
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_compile_options(${name} PRIVATE -fPIC)
endfunction()

# lockstep_use_precompiled(<target> <name>)
function(lockstep_use_precompiled target name)
  target_precompile_headers(${target} REUSE_FROM ${name})
  # Programs too: the header was compiled with -fPIC, and g++ insists on the same setting.
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_compile_options(${target} PRIVATE -fPIC)
endfunction()

# Of a test the time goes into compiling it, not into running it; what it tests is optimised fully.
set(LOCKSTEP_TEST_OPTIONS $<$<CONFIG:Release>:-O1>)

if(LOCKSTEP_RUNTIME)
  lockstep_precompiled(lockstep_torch_pch torch_pch.h lockstep_torch nlohmann_json::nlohmann_json)
endif()
if(LOCKSTEP_TESTS)
  lockstep_precompiled(lockstep_test_pch test_pch.h nlohmann_json::nlohmann_json GTest::gmock)
  target_compile_options(lockstep_test_pch PRIVATE ${LOCKSTEP_TEST_OPTIONS})
  if(LOCKSTEP_RUNTIME)
    lockstep_precompiled(lockstep_torch_test_pch torch_test_pch.h lockstep_torch nlohmann_json::nlohmann_json GTest::gmock)
    target_compile_options(lockstep_torch_test_pch PRIVATE ${LOCKSTEP_TEST_OPTIONS})
  endif()
endif()

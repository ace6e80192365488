# The rooms in the order of cmake/rooms.txt: a room may include only rooms with a lower number.
# Every *.cpp of a room is part of it but for *_test.cpp (cmake/room_tests.cmake) and *_plugin.cpp, each of which is a shared
# library of its own that is loaded where it is asked for.
include(libraries)         # nlohmann_json, spdlog, lockstep_pcre2 and the others
if(LOCKSTEP_RUNTIME)
  include(lockstep_torch)   # target lockstep_torch
endif()
if(LOCKSTEP_TESTS)
  find_package(GTest REQUIRED)
  include(room_tests)       # lockstep_tests()
endif()
include(precompiled)        # lockstep_use_precompiled()

file(STRINGS ${CMAKE_SOURCE_DIR}/cmake/rooms.txt LOCKSTEP_ROOM_LINES REGEX "^[0-9]")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/cmake/rooms.txt)

# lockstep_included_rooms(<files> <rooms>): of the rooms in the variable <rooms>, those that these files include.
function(lockstep_included_rooms files rooms)
  set(found "")
  foreach(file ${files})
    file(STRINGS ${file} lines REGEX "^#include \"lockstep/")
    foreach(line ${lines})
      string(REGEX REPLACE "^#include \"lockstep/(.*)/[^/]*\".*" "\\1" room "${line}")
      string(REPLACE "/" "_" room "${room}")
      if(room IN_LIST ${rooms})
        list(APPEND found ${room})
      endif()
    endforeach()
  endforeach()
  list(REMOVE_DUPLICATES found)
  set(${rooms} ${found} PARENT_SCOPE)
endfunction()

# lockstep_room(<path> <core|runtime> <rooms it may use>...): a static library of the room, and its tests.
function(lockstep_room path side)
  string(REPLACE "/" "_" name ${path})
  set(directory ${CMAKE_SOURCE_DIR}/lockstep/${path})
  file(GLOB sources CONFIGURE_DEPENDS ${directory}/*.cpp)
  set(tests ${sources})
  list(FILTER sources EXCLUDE REGEX "_(test|plugin)\\.cpp$")
  list(FILTER tests INCLUDE REGEX "_test\\.cpp$")
  if(NOT sources)
    return()
  endif()
  set(lower_rooms ${ARGN})
  if(LOCKSTEP_SANITIZE)
    # tests/sanitizers/run.py builds few of the tests, after configuring anew: what these do not need is not compiled.
    file(GLOB files ${directory}/*.cpp ${directory}/*.h)
    lockstep_included_rooms("${files}" lower_rooms)
  endif()
  add_library(room_${name} STATIC ${sources})
  if(LOCKSTEP_SANITIZE AND name STREQUAL "nn")
    # Their loops are unrolled into thousands of vector instructions: instrumented, one file takes minutes to compile.
    set_source_files_properties(${directory}/attention_cpu_forward.cpp ${directory}/attention_cpu_backward.cpp
      PROPERTIES COMPILE_OPTIONS -fno-sanitize=all SKIP_PRECOMPILE_HEADERS ON)
  endif()
  target_include_directories(room_${name} PUBLIC ${CMAKE_SOURCE_DIR})
  foreach(lower ${lower_rooms})
    if(TARGET room_${lower})
      target_link_libraries(room_${name} PUBLIC room_${lower})
    endif()
  endforeach()
  if(side STREQUAL "runtime")
    target_link_libraries(room_${name} PUBLIC lockstep_torch nlohmann_json::nlohmann_json)
    lockstep_use_precompiled(room_${name} lockstep_torch_pch)
  else()
    target_link_libraries(room_${name} PUBLIC nlohmann_json::nlohmann_json Threads::Threads
      PRIVATE tomlplusplus::tomlplusplus spdlog::spdlog lockstep_pcre2 lockstep_utf8proc lockstep_xxhash ZLIB::ZLIB)
  endif()
  set_property(GLOBAL APPEND PROPERTY LOCKSTEP_${side}_ROOMS room_${name})
  if(LOCKSTEP_TESTS)
    lockstep_tests(${name} ${side} room_${name} ${tests})
  endif()
endfunction()

# The libraries that are not LibTorch: the system's, or those below CMAKE_PREFIX_PATH (scripts/gpu_bundle.sh fills such folders).
find_package(nlohmann_json REQUIRED)
find_package(tomlplusplus REQUIRED)
find_package(spdlog REQUIRED)
find_package(Threads REQUIRED)
find_package(ZLIB REQUIRED)

# lockstep_find_library(<name> <header> <library> [<Debian package>]): the target lockstep_<name>, for what brings no package of
# CMake's own. Without a Debian package to name, one that is missing is no error: there is no target then.
function(lockstep_find_library name header library)
  string(TOUPPER ${name} upper)
  find_path(LOCKSTEP_${upper}_INCLUDE ${header})
  find_library(LOCKSTEP_${upper}_LIBRARY ${library})
  mark_as_advanced(LOCKSTEP_${upper}_INCLUDE LOCKSTEP_${upper}_LIBRARY)
  if(LOCKSTEP_${upper}_INCLUDE AND LOCKSTEP_${upper}_LIBRARY)
    add_library(lockstep_${name} UNKNOWN IMPORTED)
    set_target_properties(lockstep_${name} PROPERTIES IMPORTED_LOCATION ${LOCKSTEP_${upper}_LIBRARY}
                          INTERFACE_INCLUDE_DIRECTORIES ${LOCKSTEP_${upper}_INCLUDE})
  elseif(ARGN)
    message(FATAL_ERROR "no ${header} with lib${library} (Debian: ${ARGN}): run scripts/setup.sh, or name the folder above its "
                        "include/ and lib/ in CMAKE_PREFIX_PATH.")
  endif()
endfunction()

lockstep_find_library(pcre2 pcre2.h pcre2-8 libpcre2-dev)
lockstep_find_library(utf8proc utf8proc.h utf8proc libutf8proc-dev)
lockstep_find_library(xxhash xxhash.h xxhash libxxhash-dev)
lockstep_find_library(libedit editline/readline.h edit)   # without it lines are read without editing

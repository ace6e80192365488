# Compiler cache and linker where they are installed; warnings are errors in our own code.
find_program(LOCKSTEP_CCACHE ccache)
if(LOCKSTEP_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # The sloppiness lets ccache serve translation units that use the precompiled header.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1 CCACHE_MAXSIZE=4G ${LOCKSTEP_CCACHE})
endif()
find_program(LOCKSTEP_MOLD mold)
if(LOCKSTEP_MOLD)
  add_link_options(-fuse-ld=mold)
endif()

option(LOCKSTEP_WERROR "Warnings are errors" ON)
# -Wrestrict, -Warray-bounds: false positives of g++ 12 on std::string (gcc bugs 105651, 105329).
add_compile_options(-Wall -Wextra -Wpedantic $<$<BOOL:${LOCKSTEP_WERROR}>:-Werror> -Wno-restrict -Wno-array-bounds -fno-plt
                    -fstack-protector-strong -fpch-preprocess)
add_compile_definitions(_GLIBCXX_ASSERTIONS)
if(LOCKSTEP_SANITIZE)
  # What UBSan finds ends the program like what the others find, so that no test passes with it.
  add_compile_options(-fsanitize=${LOCKSTEP_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${LOCKSTEP_SANITIZE})
endif()

# One LibTorch file takes about 0.5 GB: bound parallel compilation by memory.
set(LOCKSTEP_COMPILE_JOBS "" CACHE STRING "Files compiled at a time; empty: what memory and cores allow")
cmake_host_system_information(RESULT LOCKSTEP_MEMORY_MIB QUERY TOTAL_PHYSICAL_MEMORY)
cmake_host_system_information(RESULT LOCKSTEP_CORES QUERY NUMBER_OF_LOGICAL_CORES)
math(EXPR jobs "${LOCKSTEP_MEMORY_MIB} / 1500")
if(jobs LESS 1)
  set(jobs 1)
elseif(jobs GREATER LOCKSTEP_CORES)
  set(jobs ${LOCKSTEP_CORES})
endif()
if(LOCKSTEP_COMPILE_JOBS)
  set(jobs ${LOCKSTEP_COMPILE_JOBS})
endif()
set_property(GLOBAL PROPERTY JOB_POOLS compile=${jobs} link=1)
set(CMAKE_JOB_POOL_COMPILE compile)
set(CMAKE_JOB_POOL_LINK link)

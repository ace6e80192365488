# cmake --install: the program, both libraries, the headers of the rooms, and a package that another project finds with
# find_package(lockstep). LibTorch is not copied: the package looks for it again.
include(CMakePackageConfigHelpers)
set(LOCKSTEP_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/lockstep)

# lockstep_install_library(<name> <targets it brings>...): one export set each, so that core is found without LibTorch.
function(lockstep_install_library name)
  install(TARGETS ${ARGN} EXPORT lockstep-${name})
  install(EXPORT lockstep-${name} NAMESPACE lockstep:: DESTINATION ${LOCKSTEP_PACKAGE_DIR}
          FILE lockstep-${name}-targets.cmake)
endfunction()

target_compile_features(core INTERFACE cxx_std_20)
lockstep_install_library(core core)
if(LOCKSTEP_RUNTIME)
  set_target_properties(lockstep_torch PROPERTIES EXPORT_NAME torch)
  lockstep_install_library(runtime runtime lockstep_torch)
endif()

foreach(line ${LOCKSTEP_ROOM_LINES})
  string(REGEX MATCH "^[0-9]+ ([a-z_/]+) (core|runtime)" _ "${line}")
  if(CMAKE_MATCH_2 STREQUAL "core" OR LOCKSTEP_RUNTIME)
    install(DIRECTORY ${CMAKE_SOURCE_DIR}/lockstep/${CMAKE_MATCH_1}/
            DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/lockstep/${CMAKE_MATCH_1}
            FILES_MATCHING PATTERN "*.h" PATTERN "test_*.h" EXCLUDE)
  endif()
endforeach()
install(FILES ${CMAKE_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

configure_package_config_file(${CMAKE_SOURCE_DIR}/cmake/lockstep-config.cmake.in
                              ${CMAKE_BINARY_DIR}/lockstep-config.cmake INSTALL_DESTINATION ${LOCKSTEP_PACKAGE_DIR})
# Before 1.0 every minor version may change the interface.
write_basic_package_version_file(${CMAKE_BINARY_DIR}/lockstep-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/lockstep-config.cmake ${CMAKE_BINARY_DIR}/lockstep-config-version.cmake
        DESTINATION ${LOCKSTEP_PACKAGE_DIR})

# Debian packages by CPack: `paramshard`, with programs, units and docs, and `paramshard-dev`, with the client library.
# dpkg-shlibdeps computes their dependencies. See deploy/deb/README.md; `./dev deb DIR` makes them.
#
# cmake --install without --component installs, of these components, what is not marked EXCLUDE_FROM_ALL: settings below
# /etc and units are a package's alone.

set(deb_dir ${PROJECT_SOURCE_DIR}/deploy/deb)
set(systemd_dir ${PROJECT_SOURCE_DIR}/deploy/systemd)
set(doc_dir ${CMAKE_INSTALL_DATADIR}/doc)

install(FILES ${systemd_dir}/paramshardd.service ${systemd_dir}/paramshardd@.service
  DESTINATION lib/systemd/system COMPONENT runtime EXCLUDE_FROM_ALL)
install(FILES ${systemd_dir}/paramshardd.user.service
  DESTINATION lib/systemd/user RENAME paramshardd.service COMPONENT runtime EXCLUDE_FROM_ALL)
install(FILES ${deb_dir}/paramshard.sysusers
  DESTINATION lib/sysusers.d RENAME paramshard.conf COMPONENT runtime EXCLUDE_FROM_ALL)
install(FILES ${systemd_dir}/paramshardd.env DESTINATION /etc/paramshard COMPONENT runtime EXCLUDE_FROM_ALL)
install(FILES ${PROJECT_SOURCE_DIR}/README.md ${PROJECT_SOURCE_DIR}/CHANGELOG.md
  DESTINATION ${doc_dir}/paramshard COMPONENT runtime EXCLUDE_FROM_ALL)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/docs DESTINATION ${doc_dir}/paramshard COMPONENT runtime EXCLUDE_FROM_ALL)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/lab DESTINATION ${doc_dir}/paramshard COMPONENT runtime EXCLUDE_FROM_ALL
  FILES_MATCHING PATTERN *.md PATTERN *.svg PATTERN bench EXCLUDE PATTERN campaign EXCLUDE PATTERN measure EXCLUDE
  PATTERN study EXCLUDE)

# Debian asks of every package: the licence, and a list of changes under these names.
set(CPACK_PACKAGE_CONTACT "paramshard maintainers <maintainers@users.noreply.a-seed-39350025.example>")
string(TIMESTAMP built "%a, %d %b %Y %H:%M:%S +0000" UTC)
set(changelog ${PROJECT_BINARY_DIR}/deb/changelog)
configure_file(${deb_dir}/changelog.in ${changelog} @ONLY)
execute_process(COMMAND gzip --best --no-name --keep --force ${changelog})
foreach(component runtime development)
  set(package paramshard)
  if(component STREQUAL development)
    set(package paramshard-dev)
  endif()
  install(FILES ${deb_dir}/copyright ${changelog}.gz
    DESTINATION ${doc_dir}/${package} COMPONENT ${component} EXCLUDE_FROM_ALL)
endforeach()

# Content of the packages: the rest of the build, tests above all, is not needed for them.
add_custom_target(packaged DEPENDS ${libraries} paramshardd paramshardctl paramshard-digits
  paramshard-demo)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME paramshard)
set(CPACK_PACKAGE_VENDOR paramshard)
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "parameters and optimizer state of models in training")
set(CPACK_PACKAGE_DIRECTORY ${PROJECT_BINARY_DIR}/deb)
set(CPACK_STRIP_FILES ON)
# Settings are below /etc, everything else below /usr.
set(CPACK_SET_DESTDIR ON)
set(CPACK_INSTALL_PREFIX /usr)
set(CPACK_COMPONENTS_ALL runtime development)

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)

set(CPACK_DEBIAN_RUNTIME_PACKAGE_NAME paramshard)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SECTION science)
set(CPACK_COMPONENT_RUNTIME_DESCRIPTION "The daemon paramshardd owns a model's sharded, quantized parameters and its
optimizer state. Trainers gather from it, push gradients to it and commit
steps. They may crash or be replaced: the state stays, and training goes on
bit for bit. Daemon, paramshardctl, example trainers and units for systemd.")
set(CPACK_DEBIAN_RUNTIME_PACKAGE_DEPENDS "systemd | systemd-standalone-sysusers")
set(CPACK_DEBIAN_RUNTIME_PACKAGE_CONTROL_EXTRA
  ${deb_dir}/conffiles ${deb_dir}/postinst ${deb_dir}/prerm ${deb_dir}/postrm)

set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME paramshard-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION "The client library for trainers in C++: headers, static libraries, protos, and
the package for CMake.")
# Its static libraries name these, which dpkg-shlibdeps does not see. gRPC's package for CMake wants its compilers.
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS 
  "libgrpc++-dev, protobuf-compiler-grpc, libprotobuf-dev, protobuf-compiler, libabsl-dev")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SUGGESTS "paramshard (= ${PROJECT_VERSION})")
include(CPack)

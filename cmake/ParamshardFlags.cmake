# How our own code is compiled. Generated code takes no part.
add_library(paramshard_flags INTERFACE)
target_compile_options(paramshard_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra $<$<BOOL:${PARAMSHARD_WERROR}>:-Werror>>
  # GCC 12 sees overlaps in std::string that are none (GCC bug 105651).
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-restrict>
  # Clang checks who holds which mutex.
  $<$<COMPILE_LANG_AND_ID:CXX,Clang>:-Wthread-safety -Werror=thread-safety>
  # The same bytes on every machine: no fused multiply-add that the source does not ask for.
  $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>
  # Programs hold what they call, not whole object files: with --gc-sections.
  $<$<COMPILE_LANGUAGE:CXX>:-ffunction-sections -fdata-sections>
  $<$<COMPILE_LANGUAGE:CUDA>:--fmad=false -Xcompiler=-Wall,-Wextra,-Wno-restrict,-ffp-contract=off
    # Formulas that host and device share call constexpr members of the standard library.
    --expt-relaxed-constexpr
    # Every program that launches kernels has them inside: less than half of their size.
    --compress-mode=size
    $<$<BOOL:${PARAMSHARD_WERROR}>:-Werror=all-warnings>>)
target_link_options(paramshard_flags INTERFACE -Wl,--gc-sections)

if(PARAMSHARD_SANITIZE)
  # The check of virtual calls opens a pipe whenever it looks: it fails tests in which there is no descriptor left.
  set(sanitize -fsanitize=${PARAMSHARD_SANITIZE} -fno-sanitize=vptr -fno-sanitize-recover=all)
  target_compile_options(paramshard_flags INTERFACE ${sanitize} -fno-omit-frame-pointer)
  target_link_options(paramshard_flags INTERFACE ${sanitize})
endif()

# The speed of a test is that of the libraries it calls.
add_library(paramshard_test_flags INTERFACE)
if(PARAMSHARD_SANITIZE)
  target_compile_options(paramshard_test_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-O0>)
else()
  target_compile_options(paramshard_test_flags INTERFACE $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release>>:-Os>)
endif()

# Linked into every program.
if(PARAMSHARD_SANITIZE MATCHES "thread")
  add_library(paramshard_tsan OBJECT
    ${PROJECT_SOURCE_DIR}/cmake/tsan/absl_synchronization.cc
    ${PROJECT_SOURCE_DIR}/cmake/tsan/grpc_completion.cc)
  target_link_libraries(paramshard_tsan PRIVATE paramshard_flags PUBLIC absl::synchronization gRPC::grpc++)
endif()

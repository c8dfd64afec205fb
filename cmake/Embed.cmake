# weir_embed(TARGET NAME FILE): makes the bytes of FILE part of TARGET. The header NAME.h declares
# `weir::kName` (NAME in camel case) as a std::string_view.
set(WEIR_EMBED_SCRIPT ${CMAKE_CURRENT_LIST_DIR}/EmbedFile.cmake)
function(weir_embed target name file)
  set(out ${CMAKE_BINARY_DIR}/generated/${name})
  add_custom_command(
    OUTPUT ${out}.cpp ${out}.h
    COMMAND ${CMAKE_COMMAND} -DNAME=${name} -DINPUT=${file} -DOUTPUT=${out} -P ${WEIR_EMBED_SCRIPT}
    DEPENDS ${file} ${WEIR_EMBED_SCRIPT}
    VERBATIM)
  target_sources(${target} PRIVATE ${out}.cpp ${out}.h)
endfunction()

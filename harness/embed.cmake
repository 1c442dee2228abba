# Turns INPUT, a text file, into OUTPUT, a C++ file that defines it as attn::presets_json.
file(READ ${INPUT} text)
file(WRITE ${OUTPUT} "namespace attn {\nextern const char* const presets_json;\nconst char* const presets_json = R\"json(${text})json\";\n}\n")

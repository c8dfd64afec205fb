#include "cli/commands.h"

int main(int argc, char** argv) { return weir::run_weir(argc, argv); }

#include "apps/lockstep/program.h"

int main(int argc, char** argv) { return lockstep::apps::run_program({argv + 1, argv + argc}); }

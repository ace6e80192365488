// The shared libraries are made of the rooms; CMake wants one source of their own.

// A C++ exception, as a driver written in C++ lets it escape.
extern "C" void fake_throw() { throw 42; }

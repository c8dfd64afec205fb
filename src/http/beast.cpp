// Asio's and Beast's function bodies, compiled once.
#include <boost/asio/impl/src.hpp>
#include <boost/beast/src.hpp>

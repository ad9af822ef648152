// Package brokertest is the conformance suite for Kafka servers. The embedded server has to pass it
// in each test run, and Apache Kafka with the build tag real.
//
// A test case is a function and a line in the variable cases. Each case gets its own install, so
// cases can share one server without affecting each other.
package brokertest

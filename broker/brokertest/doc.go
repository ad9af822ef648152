// Package brokertest is the conformance suite that every Kafka has to pass: the embedded one in each test run, and Apache Kafka with the build tag real.
//
// A case is a function and a line in cases. Each case gets its own install, so cases can
// share one server without affecting each other.
package brokertest

// Package kcat holds our streams against librdkafka, by its command kcat: it
// reads what we write and writes what we read, on an Apache Kafka. Its tests
// carry the build tag real and need what .ci/real-servers-install installs.
package kcat

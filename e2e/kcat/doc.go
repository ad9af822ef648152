// Package kcat tests our streams with librdkafka's command kcat on an Apache Kafka: kcat
// reads the records that we write, and we read the records that it writes. Its tests
// have the build tag real and need the programs that .ci/real-servers-install installs.
package kcat

// Package peers tests the gateway and the dispatcher with the CloudEvents libraries of other
// languages: npm's cloudevents and Python's. Each library posts the same events in every mode, and
// the test compares the stored events with the posted ones. Each library is also a subscriber that
// answers in every mode with the event that it received, and the test compares the answers on their
// stream. The tests have the build tag real and need the programs that .ci/real-servers-install
// installs.
package peers

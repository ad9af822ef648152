// Package peers holds the gateway and the dispatcher against the CloudEvents
// libraries of other languages: npm's cloudevents and Python's. Each posts the
// same events in every mode, and what then stands on the stream is compared with
// what they were told to post; each is a subscriber that answers in every mode
// with what it has read, and its answers are looked for on their stream. Its
// tests carry the build tag real and need what .ci/real-servers-install installs.
package peers

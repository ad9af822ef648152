// Package peers holds the gateway against the CloudEvents libraries of other
// languages: npm's cloudevents and Python's. Each posts the same events in every
// mode, and what then stands on the stream is compared with what they were told
// to post. Its tests carry the build tag real and need what
// .ci/real-servers-install installs.
package peers

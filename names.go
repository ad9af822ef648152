package tidemill

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// DefaultName is the install's name where the config gives none.
const DefaultName = "tidemill"

const maxName = 40

var (
	errLong = fmt.Errorf("is longer than %d letters", maxName)
	errDot  = errors.New("has a dot with no name beside it")
)

// Names derives every name that lives outside a process from the install's
// name, so that installs share a Kafka, a Redis and a cluster without meeting.
type Names struct{ install string }

// NewNames checks the install's name and returns its derivations.
func NewNames(install string) (Names, error) {
	if install == "" {
		install = DefaultName
	}
	if err := CheckLabel(install); err != nil {
		return Names{}, fmt.Errorf("name %q: %w", install, err)
	}
	return Names{install: install}, nil
}

// Install is the install's own name.
func (n Names) Install() string { return n.install }

// Topic is the Kafka topic that carries a stream.
func (n Names) Topic(stream string) string { return n.install + "." + stream }

// Stream is the stream that a topic carries; false if the topic is not ours.
func (n Names) Stream(topic string) (string, bool) {
	return strings.CutPrefix(topic, n.install+".")
}

// Group is the consumer group of a reader of ours.
func (n Names) Group(reader string) string { return n.install + "." + reader }

// Transactional is the transactional id of one member slot. A slot's successor
// uses the same id, which fences the slot's former holder.
func (n Names) Transactional(reader string, slot int) string {
	return n.install + "." + reader + "." + strconv.Itoa(slot)
}

// Source is the CloudEvents source of a component of ours.
func (n Names) Source(component string) string {
	return "/tidemill/" + n.install + "/" + component
}

// Key is the Redis key of what the parts name. Keys with the same part in
// braces lie on one node of a Redis Cluster.
func (n Names) Key(parts ...string) string {
	return n.install + ":" + strings.Join(parts, ":")
}

// CheckStream says what is wrong with a stream's name, if anything. The whole
// name is bounded, not only its labels, so that topics and groups named after
// it fit Kafka's 249 letters.
func CheckStream(name string) error {
	base, parked := CutParked(name)
	if parked {
		base = strings.TrimPrefix(base, scorerStreams)
	}
	if len(base) > maxName {
		return fmt.Errorf("stream %q: %w", name, errLong)
	}
	for part := range strings.SplitSeq(name, ".") {
		if part == "" && name != "" {
			return fmt.Errorf("stream %q: %w", name, errDot)
		}
		if err := CheckLabel(part); err != nil {
			return fmt.Errorf("stream %q: %w", name, err)
		}
	}
	return nil
}

// CheckLabel says what is wrong with a name of one label, such as a trigger's,
// if anything.
func CheckLabel(s string) error {
	if s == "" {
		return errors.New("is empty")
	}
	if len(s) > maxName {
		return errLong
	}
	for i := range len(s) {
		c := s[i]
		inner := i > 0 && i < len(s)-1
		if c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' && inner {
			continue
		}
		return fmt.Errorf("has %q; use a-z, 0-9 and, inside, '-'", c)
	}
	return nil
}

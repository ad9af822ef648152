package tidemill

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// DefaultName is the install's name if the config gives none.
const DefaultName = "tidemill"

const maxName = 40

var (
	errLong = fmt.Errorf("is longer than %d letters", maxName)
	errDot  = errors.New("has a dot without a name before and after it")
)

// Names derives topics, groups, keys and other shared names from the install's name, so
// that several installs can share a Kafka, a Redis and a cluster.
type Names struct{ install string }

// NewNames checks the install's name and returns the names derived from it.
func NewNames(install string) (Names, error) {
	if install == "" {
		install = DefaultName
	}
	if err := CheckLabel(install); err != nil {
		return Names{}, fmt.Errorf("name %q: %w", install, err)
	}
	return Names{install: install}, nil
}

// Install returns the install's name.
func (n Names) Install() string { return n.install }

// Topic returns the Kafka topic of a stream.
func (n Names) Topic(stream string) string { return n.install + "." + stream }

// Stream returns the stream of a topic; false if the topic is not ours.
func (n Names) Stream(topic string) (string, bool) {
	return strings.CutPrefix(topic, n.install+".")
}

// Group returns the consumer group of one of our readers.
func (n Names) Group(reader string) string { return n.install + "." + reader }

// Transactional returns the transactional id of one member slot. The next holder of the
// slot uses the same id, which fences the former holder.
func (n Names) Transactional(reader string, slot int) string {
	return n.install + "." + reader + "." + strconv.Itoa(slot)
}

// Source returns the CloudEvents source of one of our components.
func (n Names) Source(component string) string {
	return "/tidemill/" + n.install + "/" + component
}

// Key returns the Redis key that the parts name. Keys with the same part in braces are
// stored on one node of a Redis Cluster.
func (n Names) Key(parts ...string) string {
	return n.install + ":" + strings.Join(parts, ":")
}

// CheckStream returns an error if a stream's name is not valid. The length of the whole
// name is limited, not only that of its labels, so that the names of its topics and groups
// fit into Kafka's limit of 249 letters.
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

// CheckLabel returns an error if a name of one label, such as a trigger's, is not valid.
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

package live

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"hash/fnv"
	"maps"
	"slices"
)

// Version is the version of a topic, as text. It is opaque: two versions are equal or not. Gateways that have read the
// same facts about a topic give the topic the same version.
type Version string

const versionBytes = 6

// versionOf returns the text of a number.
func versionOf(n uint64) Version {
	b := binary.BigEndian.AppendUint64(nil, n)
	return Version(base64.RawURLEncoding.EncodeToString(b[8-versionBytes:]))
}

// VersionOf returns the version of a content.
func VersionOf(content []byte) Version {
	h := fnv.New64a()
	_, _ = h.Write(content) // never fails
	return versionOf(h.Sum64())
}

// Known has the versions of the topics that a viewer knows.
type Known map[string]Version

const nameBytes = 4

// nameSum identifies a topic within an id.
func nameSum(topic string) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(topic)) // never fails
	return string(h.Sum(nil))
}

// ID returns the known versions as text for a URL. It takes 14 bytes a topic.
func (k Known) ID() string {
	b := make([]byte, 0, len(k)*(nameBytes+versionBytes))
	for _, topic := range slices.Sorted(maps.Keys(k)) {
		version, err := base64.RawURLEncoding.DecodeString(string(k[topic]))
		if err == nil {
			b = append(append(b, nameSum(topic)...), version...)
		}
	}
	return base64.RawURLEncoding.EncodeToString(b)
}

// ParseID returns the versions of some topics in an id. A topic that the id lacks has no version.
func ParseID(id string, topics []string) (Known, error) {
	b, err := base64.RawURLEncoding.DecodeString(id)
	if err != nil || len(b)%(nameBytes+versionBytes) != 0 {
		return nil, errors.New("it is not the id of an update: use one as it was given, in full, or leave it out")
	}
	versions := map[string]Version{}
	for one := range slices.Chunk(b, nameBytes+versionBytes) {
		versions[string(one[:nameBytes])] = Version(base64.RawURLEncoding.EncodeToString(one[nameBytes:]))
	}
	known := Known{}
	for _, topic := range topics {
		if v, ok := versions[nameSum(topic)]; ok {
			known[topic] = v
		}
	}
	return known, nil
}

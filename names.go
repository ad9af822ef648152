package tidemill

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"errors"
	"fmt"
	"net/url"
	"path"
	"strconv"
	"strings"

	"github.com/cloudevents/sdk-go/v2/event"
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

// idLength is the length of every id. It has 130 bits, so two ids are never equal by
// accident, and it fits a DNS label.
const idLength = 26

const base32Lower = "abcdefghijklmnopqrstuvwxyz234567"

// ID derives an id from parts: base32 of SHA-256 over the parts. Each part follows its
// length, so ("ab", "c") and ("a", "bc") differ. The same parts give the same id for
// ever, on any machine, so a repeated step names the same event.
func ID(parts ...string) string {
	sum := sha256.Sum256(appendParts(make([]byte, 0, 256), parts...))
	return base32.NewEncoding(base32Lower).EncodeToString(sum[:])[:idLength]
}

// appendParts appends each part after its length.
func appendParts(dst []byte, parts ...string) []byte {
	for _, p := range parts {
		dst = binary.BigEndian.AppendUint64(dst, uint64(len(p)))
		dst = append(dst, p...)
	}
	return dst
}

// Cause names an event that causes another event or a run. CloudEvents makes the pair of
// source and id unique, and our consumers recognise a repeated event by it.
type Cause struct {
	Source string `json:"source"`
	ID     string `json:"id"`
}

// CauseOf returns the event as a cause.
func CauseOf(e event.Event) Cause { return Cause{Source: e.Source(), ID: e.ID()} }

// Derive returns the id of the cause's effect for a purpose. One cause has one effect for
// each purpose, however often it is delivered.
func (c Cause) Derive(purpose ...string) string {
	return ID(append([]string{c.Source, c.ID}, purpose...)...)
}

// Digest returns SHA-256 over the cause's source and id. Its first bytes are enough to
// tell the causes of one run apart.
func (c Cause) Digest() [sha256.Size]byte {
	return sha256.Sum256(appendParts(make([]byte, 0, 256), c.Source, c.ID))
}

// Streams that every install has.
const (
	StreamEvents      = "events"       // outside events of every type that no other stream claims
	StreamFacts       = "facts"        // requests and changes of runs, models and data; never expires
	StreamProgress    = "progress"     // steps of runs
	StreamDeadLetters = "dead-letters" // events that could not be read, delivered or scored; never expires
	StreamCommands    = "commands"     // requests of people; never expires
	StreamClock       = "clock"        // progress of the controller with the schedules

	StreamOutcomes = "outcomes" // answers of scorers, each together with its truth

	// StreamGroupOffsets holds how far our consumer groups have read, because Kafka forgets a group that
	// has had no members for a week. It never expires.
	StreamGroupOffsets = "group-offsets"
)

const parkedSuffix = ".parked"

// Parked returns the stream for a stream's events that cannot be delivered yet. They wait
// there so that events of other keys need not wait for them.
func Parked(stream string) string { return stream + parkedSuffix }

// CutParked returns the stream whose events wait on the given stream; false if the given
// stream is not for parked events.
func CutParked(stream string) (string, bool) { return strings.CutSuffix(stream, parkedSuffix) }

// Bookmarked reports whether the offsets that groups commit on a stream only say where to
// begin a search. They do not say how far a group has read, so such a group has no lag.
func Bookmarked(stream string) bool {
	_, parked := CutParked(stream)
	return parked || stream == StreamClock
}

// FixedPartitions reports whether a stream must keep its number of partitions for ever.
// Tidemill computes its state from the order of these streams. With more partitions most
// keys would move, and the order of a key's older and newer events would be lost. The outcomes of
// a key are looked for in one partition. The stream of group offsets may get more, because all its records are on its first
// partition, however many it has.
func FixedPartitions(stream string) bool {
	switch stream {
	case StreamFacts, StreamDeadLetters, StreamCommands, StreamClock, StreamOutcomes:
		return true
	}
	return false
}

// ReservedStream returns an error if only Tidemill itself may write to a stream.
func ReservedStream(stream string) error {
	_, parked := CutParked(stream)
	switch stream {
	case StreamFacts, StreamProgress, StreamDeadLetters, StreamCommands, StreamClock, StreamGroupOffsets, StreamOutcomes:
	default:
		if !parked {
			return nil
		}
	}
	return fmt.Errorf("stream %q is reserved: only Tidemill writes to it; publish to %q, or to a stream of yours", stream, StreamEvents)
}

// ScorerParked returns the stream where events wait for models that a scorer has not loaded yet.
func ScorerParked(scorer string) string { return Parked(scorerStreams + scorer) }

// ScorerStream reports whether a stream has the name of a scorer's own stream.
func ScorerStream(stream string) bool { return strings.HasPrefix(stream, scorerStreams) }

// ScorerGroup returns the name of a scorer's consumer group.
func ScorerGroup(scorer string) string { return scorerStreams + scorer }

// TriggersGroup returns the name of the consumer group that serves a stream's triggers.
func TriggersGroup(stream string) string { return "triggers." + stream }

// scorerStreams is the prefix of the names of streams and groups that belong to scorers.
const scorerStreams = "scorer."

const maxDataset = 200 // letters

// CheckDataset returns an error if a text is not a valid name of a dataset or a model. A
// name is a path of segments. It is used in folders and URLs unchanged: no character is
// escaped or replaced, so two names never become the same path.
func CheckDataset(name string) error {
	if name == "" {
		return errors.New("is empty")
	}
	if len(name) > maxDataset {
		return fmt.Errorf("is longer than %d letters", maxDataset)
	}
	for segment := range strings.SplitSeq(name, "/") {
		if err := checkSegment(segment); err != nil {
			return err
		}
	}
	return nil
}

func checkSegment(s string) error {
	switch {
	case s == "":
		return errors.New("has a '/' without a name before and after it")
	case s[0] == '.':
		return fmt.Errorf("has %q, which begins with a dot", s)
	case s == "_":
		return errors.New("has the segment \"_\", which is reserved")
	}
	for _, c := range s {
		if !inSegment(c) {
			return fmt.Errorf("has %q; use letters, digits, '.', '_', '-', '@', '+', '=', ':' and, between segments, '/'", c)
		}
	}
	return nil
}

func inSegment(c rune) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("._-@+=:", c)
}

// CutDatasetRef splits a text at its last @ into a dataset and its branch or commit. The name of a dataset may have an @
// too, as in bots/ana@example.com, because example.com cannot be a branch.
func CutDatasetRef(text string) (dataset, ref string, found bool) {
	return cutLast(text, func(ref string) bool { return ref == "" || CheckLabel(ref) == nil })
}

// cutLast cuts a text at its last @, if the rest fits.
func cutLast(text string, fits func(rest string) bool) (before, after string, found bool) {
	if at := strings.LastIndexByte(text, '@'); at >= 0 && fits(text[at+1:]) {
		return text[:at], text[at+1:], true
	}
	return text, "", false
}

func isDecimal(text string) bool {
	return text != "" && strings.Trim(text, "0123456789") == ""
}

// CheckURI returns an error if the input's URL must not be fetched: it must begin with a
// prefix that the recipe allows. URLs from events are checked, and URLs of redirects.
//
// The query of a URL may contain a secret, so errors do not show it.
func (in Input) CheckURI(uri string) error {
	u, err := url.Parse(uri)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return fmt.Errorf("input %s: %s is no URL of http or https", in.Name, shownURI(uri))
	case u.User != nil:
		return fmt.Errorf("input %s: the URL at %s has a user before the host", in.Name, shownURI(u.Host))
	case strings.Contains(u.Path, `\`):
		return fmt.Errorf("input %s: %s has a \\ in its path, which some servers take for a /", in.Name, shownURI(uri))
	}
	plain := path.Clean("/" + u.Path)
	for _, prefix := range in.Allow {
		p, err := url.Parse(prefix)
		if err == nil && p.Scheme == u.Scheme && strings.EqualFold(p.Host, u.Host) && beginsWith(plain, p.Path) {
			return nil
		}
	}
	return fmt.Errorf("input %s: %s begins with nothing that the recipe allows: %s", in.Name, shownURI(uri), strings.Join(in.Allow, ", "))
}

// beginsWith also accepts the folder itself if the prefix ends with a slash.
func beginsWith(path, prefix string) bool {
	return strings.HasPrefix(path, prefix) || path+"/" == prefix
}

// shownURI returns a URL for an error's text, without secrets.
func shownURI(uri string) string {
	const most = 200
	shown, _, more := strings.Cut(uri, "?")
	if len(shown) > most {
		shown, more = shown[:most], true
	}
	if at := strings.LastIndexByte(shown, '@'); at >= 0 {
		shown = "…" + shown[at:] // the part before it may be a password
	}
	if more {
		shown += "…"
	}
	return fmt.Sprintf("%q", shown)
}

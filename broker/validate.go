package broker

import (
	"encoding/binary"
	"errors"
	"fmt"
	"mime"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"
	"unsafe"
)

// The CloudEvents Kafka protocol binding 1.0: an attribute is a header
// ce_<name>, except for datacontenttype, which is the header content-type; the
// record's value is the data. That is binary mode, which we write. We also read
// structured mode, where content-type begins with application/cloudevents and
// the value is the whole event as JSON.
const (
	specVersion        = "1.0"
	headerPrefix       = "ce_"
	headerContentType  = "content-type"
	structuredPrefix   = "application/cloudevents"
	structuredJSON     = "application/cloudevents+json"
	structuredBatch    = "application/cloudevents-batch"
	attrSpecVersion    = "specversion"
	attrPartitionKey   = "partitionkey"
	attrContentType    = "datacontenttype"
	memberData         = "data"
	memberDataBase64   = "data_base64"
	contentTypeJSON    = "application/json"
	nameOfNoEventShown = 40 // letters of a hostile name or value that an error repeats
)

// What an event may hold, whoever wrote it: a record of a megabyte could carry a
// hundred thousand headers, and finding duplicates among them would be quadratic.
const (
	maxHeaders   = 256
	maxName      = 128
	maxAttribute = 64 << 10
)

var (
	errMissing = errors.New("is missing")
	errUTF8    = errors.New("is not valid UTF-8")
	errLong    = fmt.Errorf("is longer than %d bytes", maxAttribute)
)

// clip quotes the beginning of text that nobody has checked.
func clip(s string) string {
	if len(s) > nameOfNoEventShown {
		return fmt.Sprintf("%q…", s[:nameOfNoEventShown])
	}
	return fmt.Sprintf("%q", s)
}

// versionFault refuses every version but ours. 0.3 is met in the wild, hence the
// hint.
func versionFault(version string) error {
	switch version {
	case specVersion:
		return nil
	case "":
		return attributeError(attrSpecVersion, errors.New("is missing: this is no CloudEvent"))
	}
	return attributeError(attrSpecVersion, fmt.Errorf("is %s; only 1.0 is supported: publish the event as CloudEvents 1.0", clip(version)))
}

var (
	errNoName   = errors.New("has no name")
	errLongName = fmt.Errorf("has a name longer than %d letters", maxName)
	errLetters  = errors.New("has a name with other letters than a-z and 0-9")
	errReserved = errors.New("has the name that is reserved for the data itself")
)

// nameFault says what is wrong with an extension's name.
func nameFault(name string) error {
	if name == "" {
		return errNoName
	}
	if len(name) > maxName {
		return errLongName
	}
	for i := range len(name) {
		if c := name[i]; c-'a' >= 26 && c-'0' >= 10 {
			return errLetters
		}
	}
	if name == memberData {
		return errReserved
	}
	return nil
}

// requiredFault finds a required attribute that is missing or blank.
func (v *View) requiredFault() error {
	switch {
	case blank(v.ID):
		return attributeError("id", errMissing)
	case blank(v.Source):
		return attributeError("source", errMissing)
	case blank(v.Type):
		return attributeError("type", errMissing)
	}
	return nil
}

func blank(s string) bool {
	if s == "" {
		return true
	}
	return (s[0] <= ' ' || s[0] >= utf8.RuneSelf) && strings.TrimSpace(s) == ""
}

func hasPrefixFold(s, prefix string) bool {
	return len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix)
}

// text and raw turn bytes into a string and back without a copy; they are the
// only unsafe code of the binding. The string is as good as the bytes: whoever
// reuses them ends the view's life. The bytes of a string must not be written.
func text(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

func raw(s string) []byte {
	if s == "" {
		return []byte{} // an empty header value; nil would be Kafka's null
	}
	return unsafe.Slice(unsafe.StringData(s), len(s))
}

// Validate holds the event against all of CloudEvents 1.0 and against what the
// binding can carry. Publishers and edges call it; what passes is read back by
// us and by others. A plain event costs no allocation.
func (v *View) Validate() error {
	if err := v.requiredFault(); err != nil {
		return err
	}
	if err := v.stringsFault(); err != nil {
		return err
	}
	if err := v.formFault(); err != nil {
		return err
	}
	if err := v.extensionsFault(); err != nil {
		return err
	}
	return v.headersFault()
}

// Legible tells whether an event that was read, and has perhaps been given more
// headers, could be read again if it were written as it is: see
// [ProducerOptions.AsRead].
func (v *View) Legible() error {
	if err := v.requiredFault(); err != nil {
		return err
	}
	if hasPrefixFold(v.DataContentType, structuredPrefix) {
		return attributeError(attrContentType, errors.New("would make it an event in structured mode"))
	}
	return v.headersFault()
}

func (v *View) stringsFault() error {
	if plainString(v.ID) && plainString(v.Source) && plainString(v.Type) && plainString(v.Subject) &&
		plainString(v.DataContentType) && plainString(v.DataSchema) && plainString(v.Time) {
		return nil
	}
	core := [...]Attribute{{"id", v.ID}, {"source", v.Source}, {"type", v.Type}, {"subject", v.Subject},
		{attrContentType, v.DataContentType}, {"dataschema", v.DataSchema}, {"time", v.Time}}
	for i := range core {
		if err := stringFault(core[i].Value); err != nil {
			return attributeError(core[i].Name, err)
		}
	}
	return nil
}

// formFault checks the attributes that are more than text.
func (v *View) formFault() error {
	if err := referenceFault(v.Source); err != nil {
		return attributeError("source", err)
	}
	if v.DataSchema != "" {
		if err := absoluteFault(v.DataSchema); err != nil {
			return attributeError("dataschema", err)
		}
	}
	if v.Time != "" && !plainTime(v.Time) && !anyTime(v.Time) {
		return attributeError("time", fmt.Errorf("%w: %s", errTime, clip(v.Time)))
	}
	if err := contentTypeFault(v.DataContentType); err != nil {
		return attributeError(attrContentType, err)
	}
	return nil
}

func (v *View) extensionsFault() error {
	for i, x := range v.Extensions {
		if err := nameFault(x.Name); err != nil {
			return attributeError(x.Name, err)
		}
		if v.core(x.Name) != nil || x.Name == attrSpecVersion {
			return attributeError(x.Name, errors.New("is no extension: use the event's own field"))
		}
		if v.extension(x.Name) != i {
			return attributeError(x.Name, errTwice)
		}
		if err := stringFault(x.Value); err != nil {
			return attributeError(x.Name, err)
		}
	}
	return nil
}

// headersFault keeps a carried-along header from posing as an attribute, and an
// event from having more headers than a reader takes.
func (v *View) headersFault() error {
	const core = 8
	if n := core + len(v.Extensions) + len(v.Foreign); n > maxHeaders {
		return fmt.Errorf("event has %d attributes and headers; at most %d are carried", n, maxHeaders)
	}
	for i := range v.Foreign {
		key := v.Foreign[i].Key
		if _, ok := attributeOf(key); ok || isContentType(key) {
			return fmt.Errorf("header %s: stands for an attribute; set the attribute instead", clip(key))
		}
	}
	return nil
}

// stringFault checks CloudEvents' String: Unicode without control characters
// and noncharacters.
func stringFault(s string) error {
	if plainString(s) {
		return nil
	}
	if len(s) > maxAttribute {
		return errLong
	}
	return unicodeFault(s)
}

// plainString reports whether all is ASCII without control characters, and of
// bounded length. Eight bytes are judged at a time; the last eight overlap those
// before, so that only a string of less than eight is walked.
func plainString(s string) bool {
	b := raw(s)
	if len(b) < 8 {
		return plainBytes(b)
	}
	odd := oddBits(binary.LittleEndian.Uint64(b[len(b)-8:]))
	for ; len(b) > 8; b = b[8:] {
		odd |= oddBits(binary.LittleEndian.Uint64(b))
	}
	return odd&0x8080808080808080 == 0 && len(s) <= maxAttribute
}

func plainBytes(b []byte) bool {
	for _, c := range b {
		if c < ' ' || c >= 0x7f {
			return false
		}
	}
	return true
}

// oddBits asks three things of eight bytes at once, and sets a high bit if one
// of them holds: is one beyond ASCII, is one DEL (one more carries into the high
// bit), is one below space (32 less borrows from it).
func oddBits(x uint64) uint64 {
	const ones, high, space = 0x0101010101010101, 0x8080808080808080, 0x2020202020202020
	return x | (x + ones) | ^((x | high) - space)
}

func unicodeFault(s string) error {
	if !utf8.ValidString(s) {
		return errUTF8
	}
	for _, r := range s {
		if r < ' ' || r >= 0x7f && r <= 0x9f {
			return fmt.Errorf("has the control character %U", r)
		}
		if r&0xfffe == 0xfffe || r >= 0xfdd0 && r <= 0xfdef {
			return fmt.Errorf("has the noncharacter %U", r)
		}
	}
	return nil
}

var (
	errReference = errors.New("is no URI-reference; percent-encode what RFC 3986 does not allow")
	errAbsolute  = errors.New("is no absolute URI such as https://example.com/schema/1")
)

// referenceFault checks a URI-reference. Most sources are plain paths, for which
// the letters decide; what has a scheme, an escape or brackets is parsed.
func referenceFault(s string) error {
	parse := strings.HasPrefix(s, "//")
	for i := range len(s) {
		switch c := s[i]; {
		case c >= 'a' && c <= 'z', c >= '-' && c <= '9', c >= 'A' && c <= 'Z', c == '_', c == '~': // '-' to '9' has '.' and '/'
		case strings.IndexByte(":?#[]@!$&'()*+,;=%", c) >= 0:
			parse = true
		default:
			return errReference
		}
	}
	if !parse {
		return nil
	}
	return parsedFault(s)
}

func parsedFault(s string) error {
	if u, err := url.Parse(s); err != nil || u.String() == "" { // "#" and "//" are lost in a url.URL, sdk-go's too
		return errReference
	}
	for i := range len(s) { // url.Parse is lenient behind '?'
		if s[i] == '%' && (i+2 >= len(s) || !isHex(s[i+1]) || !isHex(s[i+2])) {
			return errReference
		}
	}
	return nil
}

func isHex(c byte) bool {
	return c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'f'
}

func absoluteFault(s string) error {
	if rest, ok := strings.CutPrefix(s, "https://"); ok && rest != "" && rest[0] != '/' && !strings.Contains(rest, ":") {
		return referenceFault(rest)
	}
	if err := referenceFault(s); err != nil {
		return err
	}
	if u, err := url.Parse(s); err != nil || !u.IsAbs() {
		return errAbsolute
	}
	return nil
}

// contentTypeFault refuses what is no media type, and the types that would make
// a reader take the record for a structured event. Space around one is lost on
// its way through HTTP, so it hides nothing.
func contentTypeFault(s string) error {
	if s == "" || s == contentTypeJSON {
		return nil
	}
	if hasPrefixFold(strings.TrimSpace(s), structuredPrefix) {
		return errors.New("is that of a whole event and marks structured mode; use application/json for an event inside an event")
	}
	media, _, err := mime.ParseMediaType(s)
	if err != nil || !strings.Contains(media, "/") {
		return errors.New("is no media type such as application/json or text/plain; charset=utf-8")
	}
	return nil
}

// plainTime reports whether s is an RFC 3339 time in UTC as almost every
// publisher writes it: 2006-01-02T15:04:05Z with or without a fraction. It may
// say no to a valid time, a leap day say, which package time then judges, but
// never yes to an invalid one; it costs a fraction of that.
func plainTime(s string) bool {
	const shape = "0000-00-00T00:00:00"
	n := len(s) - 1
	if n < len(shape) || s[n] != 'Z' {
		return false
	}
	if s[4] != '-' || s[7] != '-' || s[10] != 'T' || s[13] != ':' || s[16] != ':' {
		return false
	}
	month, day := pair(s, 5), pair(s, 8)
	return digits(s[:4]) && month-1 < 12 && day-1 < uint(daysOf[month-1]) &&
		pair(s, 11) < 24 && pair(s, 14) < 60 && pair(s, 17) < 60 && fraction(s[len(shape):n])
}

// anyTime reports whether s is an RFC 3339 time at all. Package time lets hours of
// one digit pass, a comma before the fraction and zones a day away, which neither
// our reader nor others' take.
func anyTime(s string) bool {
	var t time.Time
	if !looksLikeTime(s) || s[len("0000-00-00T00:00:00")] == ',' || t.UnmarshalText(raw(s)) != nil {
		return false
	}
	n := len(s)
	return s[n-1] == 'Z' || pair(s, n-5) < 24 && pair(s, n-2) < 60
}

// daysOf each month in a common year.
const daysOf = "\x1f\x1c\x1f\x1e\x1f\x1e\x1f\x1f\x1e\x1f\x1e\x1f"

// pair is the number of two digits, and beyond any that a time can have where
// they are none.
func pair(s string, at int) uint {
	tens, ones := uint(s[at]-'0'), uint(s[at+1]-'0')
	if tens > 9 || ones > 9 {
		return 100
	}
	return tens*10 + ones
}

func fraction(s string) bool {
	return s == "" || len(s) > 1 && s[0] == '.' && digits(s[1:])
}

func digits(s string) bool {
	for i := range len(s) {
		if c := s[i] - '0'; c > 9 {
			return false
		}
	}
	return true
}

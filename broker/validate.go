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

// The CloudEvents Kafka protocol binding 1.0: an attribute is a header ce_<name>, except
// datacontenttype, which is the header content-type. The value of the record is the data. This is
// binary mode, in which we write. We also read structured mode: content-type begins with
// application/cloudevents, and the value is the whole event as JSON.
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
	nameOfNoEventShown = 40 // bytes of an unchecked name or value that an error repeats
)

// The limits of every event. Without them a record of one megabyte could carry a hundred thousand
// headers, and the search for duplicates among them would take quadratic time.
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

// clip quotes the beginning of unchecked text.
func clip(s string) string {
	if len(s) > nameOfNoEventShown {
		return fmt.Sprintf("%q…", s[:nameOfNoEventShown])
	}
	return fmt.Sprintf("%q", s)
}

// versionFault refuses every version but 1.0. Events of 0.3 exist, so the error names the next
// step.
func versionFault(version string) error {
	switch version {
	case specVersion:
		return nil
	case "":
		return attributeError(attrSpecVersion, errors.New("is missing: this is not a CloudEvent"))
	}
	return attributeError(attrSpecVersion, fmt.Errorf("is %s; only 1.0 is supported: publish the event as CloudEvents 1.0", clip(version)))
}

var (
	errNoName   = errors.New("has no name")
	errLongName = fmt.Errorf("has a name longer than %d characters", maxName)
	errLetters  = errors.New("has a name with characters other than a-z and 0-9")
	errReserved = errors.New("has the name that is reserved for the data itself")
)

// nameFault returns the fault of an extension's name.
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

// requiredFault returns an error for a required attribute that is missing or blank.
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

// toText and toBytes convert between bytes and strings without a copy. They are the only unsafe
// code of the binding. The string, and a view that holds the string, are valid only until the bytes
// are reused. The bytes of a string must not be written.
func toText(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

func toBytes(s string) []byte {
	if s == "" {
		return []byte{} // an empty header value, because nil is Kafka's null
	}
	return unsafe.Slice(unsafe.StringData(s), len(s))
}

// Validate checks the event against all of CloudEvents 1.0 and against the limits of the binding.
// Publishers and gateways call Validate. We and other readers can read every event that passes. A
// plain event causes no allocation.
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

// Legible checks whether an event that was read could be read again if it were written unchanged,
// perhaps with further headers: see [ProducerOptions.AsRead].
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

// formFault checks the attributes that have a format, such as URIs and times.
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
		if v.coreField(x.Name) != nil || x.Name == attrSpecVersion {
			return attributeError(x.Name, errors.New("is not an extension: use the field of the event"))
		}
		if v.extensionIndex(x.Name) != i {
			return attributeError(x.Name, errTwice)
		}
		if err := stringFault(x.Value); err != nil {
			return attributeError(x.Name, err)
		}
	}
	return nil
}

// headersFault refuses a foreign header with the name of an attribute, and an event with more
// headers than a reader accepts.
func (v *View) headersFault() error {
	const core = 8
	if n := core + len(v.Extensions) + len(v.Foreign); n > maxHeaders {
		return fmt.Errorf("event has %d attributes and headers; at most %d are carried", n, maxHeaders)
	}
	for i := range v.Foreign {
		key := v.Foreign[i].Key
		if _, ok := attributeOf(key); ok || isContentType(key) {
			return fmt.Errorf("header %s: has the name of an attribute; set the attribute instead", clip(key))
		}
	}
	return nil
}

// stringFault checks the type String of CloudEvents: Unicode without control characters and
// noncharacters.
func stringFault(s string) error {
	if plainString(s) {
		return nil
	}
	if len(s) > maxAttribute {
		return errLong
	}
	return unicodeFault(s)
}

// plainString reports whether s is ASCII without control characters, and of limited length. It
// checks eight bytes at a time. The last eight overlap the ones before, so only a string of less
// than eight bytes is checked byte by byte.
func plainString(s string) bool {
	b := toBytes(s)
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

// oddBits checks eight bytes at once and sets the high bit of a byte if it is not ASCII, if it is
// DEL (plus one carries into the high bit), or if it is below space (minus 32 borrows from the high
// bit).
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
	errAbsolute  = errors.New("is not an absolute URI such as https://example.com/schema/1")
)

// referenceFault checks a URI-reference. Most sources are plain paths, for which a check of the
// characters is enough. A reference with a scheme, an escape or brackets is parsed.
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
	if u, err := url.Parse(s); err != nil || u.String() == "" { // "#" and "//" are lost in a url.URL, also in that of sdk-go
		return errReference
	}
	for i := range len(s) { // url.Parse is lenient after '?'
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

// contentTypeFault refuses text that is not a media type, and the types that mark a structured
// event. It ignores space around the type, because HTTP removes it.
func contentTypeFault(s string) error {
	if s == "" || s == contentTypeJSON {
		return nil
	}
	if hasPrefixFold(strings.TrimSpace(s), structuredPrefix) {
		return errors.New("is that of a whole event and marks structured mode; use application/json for an event inside an event")
	}
	media, _, err := mime.ParseMediaType(s)
	if err != nil || !strings.Contains(media, "/") {
		return errors.New("is not a media type such as application/json or text/plain; charset=utf-8")
	}
	return nil
}

// plainTime reports whether s is an RFC 3339 time in UTC as almost every publisher writes it:
// 2006-01-02T15:04:05Z with or without a fraction. It may return false for a valid time, such as a
// leap day, which package time then checks. It never returns true for an invalid time. It is much
// faster than package time.
func plainTime(s string) bool {
	const shape = "0000-00-00T00:00:00"
	n := len(s) - 1
	if n < len(shape) || s[n] != 'Z' {
		return false
	}
	if s[4] != '-' || s[7] != '-' || s[10] != 'T' || s[13] != ':' || s[16] != ':' {
		return false
	}
	month, day := twoDigits(s, 5), twoDigits(s, 8)
	return digits(s[:4]) && month-1 < 12 && day-1 < uint(daysOf[month-1]) &&
		twoDigits(s, 11) < 24 && twoDigits(s, 14) < 60 && twoDigits(s, 17) < 60 && fraction(s[len(shape):n])
}

// anyTime reports whether s is any RFC 3339 time. Package time also accepts hours of one digit, a
// comma before the fraction and zones of a day and more. Neither our reader nor others accept
// these.
func anyTime(s string) bool {
	var t time.Time
	if !looksLikeTime(s) || s[len("0000-00-00T00:00:00")] == ',' || t.UnmarshalText(toBytes(s)) != nil {
		return false
	}
	n := len(s)
	return s[n-1] == 'Z' || twoDigits(s, n-5) < 24 && twoDigits(s, n-2) < 60
}

// daysOf holds the number of days of each month in a common year.
const daysOf = "\x1f\x1c\x1f\x1e\x1f\x1e\x1f\x1f\x1e\x1f\x1e\x1f"

// twoDigits returns the number that two digits form. If they are not digits, it returns 100, which
// is too large for a time.
func twoDigits(s string, at int) uint {
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

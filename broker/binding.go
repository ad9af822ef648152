package broker

import (
	"errors"
	"fmt"
	"strings"
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

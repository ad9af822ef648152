package broker

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"tidemill.dev/broker/jsonscan"
)

var (
	errTwice     = errors.New("is given twice")
	errBothData  = errors.New("event has both data and data_base64; give one of them")
	errNotText   = errors.New("must be a JSON string")
	errNotScalar = errors.New("must be a JSON string, boolean or integer")
)

// UnmarshalStructured reads one event in the JSON event format into v, and resets v first. Strings
// without escapes point into b.
func UnmarshalStructured(b []byte, v *View) error {
	if !jsonscan.Valid(b) {
		v.reset()
		return jsonFault("structured event", b)
	}
	return unmarshalValid(b, v)
}

// unmarshalValid reads a document that is known to be valid JSON, and so of limited nesting.
func unmarshalValid(b []byte, v *View) error {
	v.reset()
	if !utf8.Valid(b) {
		return errEventUTF8
	}
	s := structured{view: v}
	if err := eachMember(b, s.member); err != nil {
		return err
	}
	if err := v.decodedFault(s.version); err != nil {
		return err
	}
	return s.readData()
}

// structured collects members that can be judged only after all are known: data depends on
// datacontenttype, which may come later.
type structured struct {
	view       *View
	version    string
	members    int
	data       []byte // JSON
	dataBase64 []byte // JSON
}

// member handles one member. A name that is given twice is refused. Readers disagree on which one
// counts, and an event's id must not depend on the reader.
func (s *structured) member(name string, value []byte) error {
	if s.members++; s.members > maxHeaders {
		return fmt.Errorf("structured event has more than %d members", maxHeaders)
	}
	switch name {
	case memberData:
		return keepOnce(&s.data, name, value)
	case memberDataBase64:
		return keepOnce(&s.dataBase64, name, value)
	}
	return s.attribute(name, value)
}

func keepOnce(field *[]byte, name string, value []byte) error {
	if *field != nil {
		return fmt.Errorf("%s %w", name, errTwice)
	}
	*field = value
	return nil
}

func (s *structured) attribute(name string, value []byte) error {
	if string(value) == "null" {
		return nil // the JSON format treats null as unset
	}
	field := s.view.core(name)
	if name == attrSpecVersion {
		field = &s.version
	}
	if field != nil && (*field != "" || value[0] != '"') {
		return attributeError(name, coreFault(*field))
	}
	plain, err := scalar(value)
	if err != nil {
		return attributeError(name, err)
	}
	if field == nil {
		return s.extension(lower(name), plain)
	}
	*field = plain
	return nil
}

func coreFault(already string) error {
	if already != "" {
		return errTwice
	}
	return errNotText
}

// extension stores an extension. Its name is read in any case, as sdk-go does; the names of core
// attributes are not.
func (s *structured) extension(name, value string) error {
	if s.view.core(name) != nil || name == attrSpecVersion {
		return attributeError(name, errors.New("must be written in lower case"))
	}
	if s.view.extension(name) >= 0 {
		return attributeError(name, errTwice)
	}
	return s.view.set(name, value)
}

// scalar returns the canonical text of an attribute's value. The JSON format has booleans, 32-bit
// integers and, for all other types, strings.
func scalar(value []byte) (string, error) {
	switch c := value[0]; {
	case c == '"':
		plain := unquote(value)
		if len(plain) > maxAttribute {
			return "", errLong
		}
		return plain, nil
	case c == 't' || c == 'f':
		return text(value), nil
	case c == '-' || c >= '0' && c <= '9':
		n, err := strconv.ParseInt(text(value), 10, 32)
		if err != nil {
			return "", fmt.Errorf("is %s; a number must be an integer of 32 bits", clip(text(value)))
		}
		return strconv.FormatInt(n, 10), nil
	}
	return "", errNotScalar
}

// readData converts the data member to bytes, according to datacontenttype.
func (s *structured) readData() error {
	switch {
	case s.data != nil && s.dataBase64 != nil:
		return errBothData
	case s.dataBase64 != nil:
		return s.readBase64()
	case s.data != nil:
		return s.readPlain()
	}
	return nil
}

func (s *structured) readBase64() error {
	if string(s.dataBase64) == "null" {
		return nil
	}
	if s.dataBase64[0] != '"' {
		return fmt.Errorf("%s %w", memberDataBase64, errNotText)
	}
	var err error
	if s.view.Data, err = base64.StdEncoding.DecodeString(unquote(s.dataBase64)); err != nil {
		return fmt.Errorf("%s: %w", memberDataBase64, err)
	}
	return nil
}

// readPlain keeps JSON data unchanged, also null. Without a datacontenttype, data is JSON; then
// datacontenttype is set to application/json, as the JSON format requires, because the other
// formats do not imply it.
func (s *structured) readPlain() error {
	v := s.view
	if v.DataContentType == "" {
		v.DataContentType = contentTypeJSON
	}
	media, _ := mediaType(v.DataContentType)
	if isJSON(media) {
		v.Data = s.data
		return nil
	}
	if string(s.data) == "null" {
		return nil
	}
	if s.data[0] != '"' {
		return fmt.Errorf("%s %w where datacontenttype is %s", memberData, errNotText, clip(v.DataContentType))
	}
	v.Data = raw(unquote(s.data))
	return nil
}

// isJSON follows the JSON format: */json and */*+json. (sdk-go accepts only application/json and
// text/json.)
func isJSON(media string) bool {
	_, subtype, _ := strings.Cut(media, "/")
	return subtype == "json" || strings.HasSuffix(subtype, "+json")
}

// MarshalStructured returns the event in the JSON event format, on one line. JSON data keeps its
// value, but line breaks are removed. Extensions are written as strings, because their types do not
// survive a Kafka header.
func MarshalStructured(v *View) []byte {
	const names = 200 // usual number of bytes around the values
	return AppendStructured(make([]byte, 0, v.size()+names), v)
}

// AppendStructured appends the result of [MarshalStructured] to dst.
func AppendStructured(dst []byte, v *View) []byte {
	dst = append(dst, `{"specversion":"1.0"`...)
	dst = appendMember(dst, "id", v.ID)
	dst = appendMember(dst, "source", v.Source)
	dst = appendMember(dst, "type", v.Type)
	dst = appendMember(dst, "subject", v.Subject)
	dst = appendMember(dst, "time", v.Time)
	dst = appendMember(dst, "dataschema", v.DataSchema)
	dst = appendMember(dst, attrContentType, v.DataContentType)
	for _, x := range v.Extensions {
		dst = append(appendQuoted(append(dst, ','), x.Name), ':')
		dst = appendQuoted(dst, x.Value)
	}
	return append(appendData(dst, v), '}')
}

func appendMember(dst []byte, name, value string) []byte {
	if value == "" {
		return dst
	}
	dst = append(append(append(dst, `,"`...), name...), `":`...)
	return appendQuoted(dst, value)
}

func appendData(dst []byte, v *View) []byte {
	switch v.dataForm() {
	case formJSON:
		return appendOneLine(append(dst, `,"data":`...), v.Data)
	case formText:
		return appendQuoted(append(dst, `,"data":`...), text(v.Data))
	case formBinary:
		dst = base64.StdEncoding.AppendEncode(append(dst, `,"data_base64":"`...), v.Data)
		return append(dst, '"')
	}
	return dst
}

// appendOneLine appends valid JSON, and compacts it if it has line breaks. A reader of one event a
// line would otherwise take a line break for the end of the event.
func appendOneLine(dst, data []byte) []byte {
	if bytes.IndexByte(data, '\n') < 0 && bytes.IndexByte(data, '\r') < 0 {
		return append(dst, data...)
	}
	b := bytes.NewBuffer(dst)
	_ = json.Compact(b, data) // fails only on invalid JSON, which dataForm has excluded
	return b.Bytes()
}

// form is the way in which the JSON event format carries data.
type form int

const (
	formNone form = iota
	formJSON
	formText
	formBinary
)

// wrapping is the largest nesting depth of an event inside other JSON, including the event's own
// level. Data whose own nesting would then exceed the limit is written as base64, because otherwise
// the whole document could not be read.
const wrapping = 16

// dataForm follows datacontenttype only if the bytes agree. Data that claims to be JSON and is not
// is written as base64, unchanged.
func (v *View) dataForm() form {
	if v.Data == nil {
		return formNone
	}
	media, params := mediaType(v.DataContentType)
	switch {
	case isJSON(media) && utf8.Valid(v.Data) && jsonscan.ValidInside(v.Data, wrapping):
		return formJSON
	case strings.HasPrefix(media, "text/") && !isJSON(media) && isUTF8(params["charset"]) && utf8.Valid(v.Data):
		return formText
	}
	return formBinary
}

func isUTF8(charset string) bool {
	return charset == "" || strings.EqualFold(charset, "utf-8") || strings.EqualFold(charset, "us-ascii")
}

// ErrTooMany means that a batch has more events than the reader takes at once.
var ErrTooMany = errors.New("batch has too many events")

// usualExtensions is the number of extensions of an event for which memory is reserved.
const usualExtensions = 4

// UnmarshalBatch reads the JSON batch format, an array of events, and calls each with every element
// in order. An invalid element does not affect the others: err is its fault, and v holds the part
// that was read. If the batch is not an array, or has more than limit elements, UnmarshalBatch
// returns an error before the first call.
//
// Each view is separate and points into b, so it may be kept as long as b.
func UnmarshalBatch(b []byte, limit int, each func(i int, v *View, err error)) error {
	all, err := elements(b, limit)
	if err != nil {
		return err
	}
	views := make([]View, len(all))
	spare := make([]Attribute, usualExtensions*len(all))
	for i := range all {
		v := &views[i]
		v.Extensions = spare[:0]
		err := unmarshalValid(all[i], v)
		if n := len(v.Extensions); n <= len(spare) {
			v.Extensions = v.Extensions[:n:n] // an append must not reach the extensions of the next event
			spare = spare[n:]
		}
		each(i, v, err)
	}
	return nil
}

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
	s := structuredDecoder{view: v}
	if err := eachMember(b, s.readMember); err != nil {
		return err
	}
	if err := v.decodedFault(s.version); err != nil {
		return err
	}
	return s.readData()
}

// structuredDecoder collects members that can be checked only after all members are known. For
// example, data depends on datacontenttype, which may come later.
type structuredDecoder struct {
	view       *View
	version    string
	members    int
	data       []byte // JSON
	dataBase64 []byte // JSON
}

// readMember handles one member. A name that is given twice is refused. Readers differ in which of
// the two they use, and an event's id must not depend on the reader.
func (s *structuredDecoder) readMember(name string, value []byte) error {
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

func (s *structuredDecoder) attribute(name string, value []byte) error {
	if string(value) == "null" {
		return nil // the JSON format treats null as unset
	}
	field := s.view.coreField(name)
	if name == attrSpecVersion {
		field = &s.version
	}
	if field != nil && (*field != "" || value[0] != '"') {
		return attributeError(name, coreFault(*field))
	}
	plain, err := scalarText(value)
	if err != nil {
		return attributeError(name, err)
	}
	if field == nil {
		return s.addExtension(lower(name), plain)
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

// addExtension stores an extension. Its name may be in upper or lower case, as in sdk-go. The names
// of core attributes must be in lower case.
func (s *structuredDecoder) addExtension(name, value string) error {
	if s.view.coreField(name) != nil || name == attrSpecVersion {
		return attributeError(name, errors.New("must be written in lower case"))
	}
	if s.view.extensionIndex(name) >= 0 {
		return attributeError(name, errTwice)
	}
	return s.view.set(name, value)
}

// scalarText returns the canonical text of an attribute's value. The JSON format has booleans,
// 32-bit integers and, for all other types, strings.
func scalarText(value []byte) (string, error) {
	switch c := value[0]; {
	case c == '"':
		plain := unquote(value)
		if len(plain) > maxAttribute {
			return "", errLong
		}
		return plain, nil
	case c == 't' || c == 'f':
		return toText(value), nil
	case c == '-' || c >= '0' && c <= '9':
		n, err := strconv.ParseInt(toText(value), 10, 32)
		if err != nil {
			return "", fmt.Errorf("is %s; a number must be an integer of 32 bits", clip(toText(value)))
		}
		return strconv.FormatInt(n, 10), nil
	}
	return "", errNotScalar
}

// readData converts the data member to bytes, according to datacontenttype.
func (s *structuredDecoder) readData() error {
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

func (s *structuredDecoder) readBase64() error {
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
func (s *structuredDecoder) readPlain() error {
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
	v.Data = toBytes(unquote(s.data))
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
		return appendQuoted(append(dst, `,"data":`...), toText(v.Data))
	case formBinary:
		dst = base64.StdEncoding.AppendEncode(append(dst, `,"data_base64":"`...), v.Data)
		return append(dst, '"')
	}
	return dst
}

// appendOneLine appends valid JSON, and compacts it if it has line breaks. Otherwise a reader of
// one event for each line would take a line break for the end of the event.
func appendOneLine(dst, data []byte) []byte {
	if bytes.IndexByte(data, '\n') < 0 && bytes.IndexByte(data, '\r') < 0 {
		return append(dst, data...)
	}
	b := bytes.NewBuffer(dst)
	_ = json.Compact(b, data) // fails only on invalid JSON, which dataForm has excluded
	return b.Bytes()
}

// ErrTooMany means that a batch has more events than the reader accepts in one batch.
var ErrTooMany = errors.New("batch has too many events")

// usualExtensions is the number of extensions of an event for which memory is reserved.
const usualExtensions = 4

// UnmarshalBatch reads the JSON batch format, an array of events, and calls each with every element
// in order. An invalid element does not affect the others: for it, err is the reason and v holds
// the part that was read. If the batch is not an array, or has more than limit elements,
// UnmarshalBatch returns an error before the first call.
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
			v.Extensions = v.Extensions[:n:n] // an append must not overwrite the extensions of the next event
			spare = spare[n:]
		}
		each(i, v, err)
	}
	return nil
}

var (
	errNotObject = errors.New("structured event is not a JSON object")
	errNotArray  = errors.New("batch is not a JSON array of events")
	errEventUTF8 = errors.New("structured event is not valid UTF-8")
)

// eachMember calls f with the name and the bytes of each member of a JSON object, in
// order. The document must be valid.
func eachMember(b []byte, f func(name string, value []byte) error) error {
	i := jsonscan.SkipSpace(b, 0)
	if b[i] != '{' {
		return errNotObject
	}
	i, more := jsonscan.Enter(b, i, '}', 1)
	for more {
		end := jsonscan.ReadString(b, i).End
		start := jsonscan.SkipColon(b, end)
		name := unquote(b[i:end])
		end = jsonscan.SkipValue(b, start, 1)
		if err := f(name, b[start:end]); err != nil {
			return err
		}
		i, more = jsonscan.Next(b, end, '}')
	}
	return nil
}

// elements returns the elements of a JSON array as parts of b. It also checks that b is JSON,
// because a separate check would read b twice.
func elements(b []byte, limit int) (all [][]byte, err error) {
	i := jsonscan.SkipSpace(b, 0)
	if i >= len(b) || b[i] != '[' {
		if jsonscan.Valid(b) {
			return nil, errNotArray
		}
		return nil, jsonFault("batch", b)
	}
	n := 0
	i, more := jsonscan.Enter(b, i, ']', 1)
	for ; more; n++ {
		end := jsonscan.SkipValue(b, i, 1)
		if end < 0 {
			return nil, jsonFault("batch", b)
		}
		if n < limit {
			all = append(all, b[i:end:end])
		}
		i, more = jsonscan.Next(b, end, ']')
	}
	if i < 0 || jsonscan.SkipSpace(b, i) < len(b) {
		return nil, jsonFault("batch", b)
	}
	if n > limit {
		return nil, fmt.Errorf("%w: at most %d are taken at once; send them in several", ErrTooMany, limit)
	}
	return all, nil
}

// jsonFault returns the error of encoding/json for a document, with its place.
func jsonFault(what string, b []byte) error {
	var syntax *json.SyntaxError
	err := json.Unmarshal(b, new(json.RawMessage))
	if errors.As(err, &syntax) {
		return fmt.Errorf("%s is not JSON, byte %d: %w", what, syntax.Offset, err)
	}
	return fmt.Errorf("%s is not JSON: %w", what, err)
}

// unquote reads a valid JSON string. Without escapes the result points into b.
func unquote(b []byte) string {
	s, _, _ := jsonscan.Text(b, 0, nil)
	return s
}

const hexDigits = "0123456789abcdef"

// appendQuoted writes a JSON string. It escapes control characters and DEL, so that an event shown
// on a terminal stays text. Bytes that are not UTF-8 become U+FFFD.
func appendQuoted(dst []byte, s string) []byte {
	dst = append(dst, '"')
	if plainString(s) && strings.IndexByte(s, '"') < 0 && strings.IndexByte(s, '\\') < 0 {
		return append(append(dst, s...), '"')
	}
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			dst = append(dst, '\\', byte(r))
		case r < ' ' || r == 0x7f:
			dst = append(dst, '\\', 'u', '0', '0', hexDigits[r>>4], hexDigits[r&15])
		default:
			dst = utf8.AppendRune(dst, r)
		}
	}
	return append(dst, '"')
}

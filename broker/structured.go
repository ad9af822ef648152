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

// UnmarshalStructured reads one event in the JSON event format into v, which it
// empties first. Where no escape stands in the way v points into b.
func UnmarshalStructured(b []byte, v *View) error {
	if !jsonscan.Valid(b) {
		v.reset()
		return jsonFault("structured event", b)
	}
	return unmarshalValid(b, v)
}

// unmarshalValid reads what is known to be JSON, which bounds its nesting too.
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

// structured collects what can be judged only when all members are known: data
// depends on datacontenttype, which may stand behind it.
type structured struct {
	view       *View
	version    string
	members    int
	data       []byte // JSON
	dataBase64 []byte // JSON
}

// member takes one member. A name given twice is refused: readers disagree on
// which counts, and an event's id must not depend on who reads it.
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
		return nil // unset, says the JSON format
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

// extension takes an extension. Its name is read in any case, as sdk-go does;
// core attributes are not.
func (s *structured) extension(name, value string) error {
	if s.view.core(name) != nil || name == attrSpecVersion {
		return attributeError(name, errors.New("must be written in lower case"))
	}
	if s.view.extension(name) >= 0 {
		return attributeError(name, errTwice)
	}
	return s.view.set(name, value)
}

// scalar is an attribute's value in canonical text form. The JSON format has
// booleans, integers of 32 bits and strings for all other types.
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

// readData turns the data's JSON into the bytes that datacontenttype names.
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

// readPlain keeps JSON data as it stands, null included. Without a
// datacontenttype data is JSON; that is made explicit, as the JSON format asks,
// because the other formats do not imply it.
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

// isJSON follows the JSON format: */json and */*+json. (sdk-go knows
// application/json and text/json only.)
func isJSON(media string) bool {
	_, subtype, _ := strings.Cut(media, "/")
	return subtype == "json" || strings.HasSuffix(subtype, "+json")
}

// MarshalStructured is the event in the JSON event format, on one line. JSON
// data keeps its value but, where it has line breaks, not its layout.
// Extensions are written as strings: their types do not survive a Kafka header.
func MarshalStructured(v *View) []byte {
	const names = 200 // bytes, usually, of what stands around the values
	return AppendStructured(make([]byte, 0, v.size()+names), v)
}

// AppendStructured is [MarshalStructured] at the end of dst.
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

// appendOneLine keeps valid JSON as it is unless it has line breaks, which
// readers of one event a line would take for the event's end.
func appendOneLine(dst, data []byte) []byte {
	if bytes.IndexByte(data, '\n') < 0 && bytes.IndexByte(data, '\r') < 0 {
		return append(dst, data...)
	}
	b := bytes.NewBuffer(dst)
	_ = json.Compact(b, data) // fails on invalid JSON only, which dataForm has ruled out
	return b.Bytes()
}

// form is how the JSON event format carries data.
type form int

const (
	formNone form = iota
	formJSON
	formText
	formBinary
)

// wrapping is how deep, at most, an event may lie in what carries it, itself
// counted. Data that is nested to the limit would make all of that unreadable, so
// it travels as base64.
const wrapping = 16

// dataForm decides by datacontenttype and believes it only as far as the bytes
// agree: what claims to be JSON and is not travels as base64, unharmed.
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

// ErrTooMany: a batch has more events than the reader takes at once.
var ErrTooMany = errors.New("batch has too many events")

// usualExtensions is how many extensions of an event memory is set aside for.
const usualExtensions = 4

// UnmarshalBatch reads the JSON batch format, an array of events, and calls
// each with every element in its order. One that is no event does not spoil the
// others: its err says why, and its view holds what was read until then. An
// error of the whole, for what is no array or has more than limit elements, comes
// before the first call.
//
// Every view is one of its own, to be kept as long as b is: they point into it.
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
			v.Extensions = v.Extensions[:n:n] // an append must not reach the next event's
			spare = spare[n:]
		}
		each(i, v, err)
	}
	return nil
}

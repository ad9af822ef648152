package broker

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
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
	if !validJSON(b) {
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
		plain, err := unquote(value)
		if err == nil && len(plain) > maxAttribute {
			err = errLong
		}
		return plain, err
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
	encoded, err := unquote(s.dataBase64)
	if err != nil {
		return err
	}
	if s.view.Data, err = base64.StdEncoding.DecodeString(encoded); err != nil {
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
	plain, err := unquote(s.data)
	v.Data = raw(plain)
	return err
}

// isJSON follows the JSON format: */json and */*+json. (sdk-go knows
// application/json and text/json only.)
func isJSON(media string) bool {
	_, subtype, _ := strings.Cut(media, "/")
	return subtype == "json" || strings.HasSuffix(subtype, "+json")
}

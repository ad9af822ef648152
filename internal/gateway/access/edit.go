package access

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"

	"tidemill.dev/config"
)

// ErrExists is the error for a new token whose name is taken.
var ErrExists = errors.New("there is a token of that name")

// ErrNotThere is the error for a token that a file does not have.
var ErrNotThere = errors.New("there is no token")

// errByHand is the error for a file that this package cannot change without damage to its layout.
var errByHand = errors.New("its layout cannot be changed safely: " +
	"write one indented entry per line below `tokens:`, or change it by hand")

const newFile = `# The callers of the gateway and their rights. It has no secrets, only the hash
# of each token. tidemill token new adds a token, tidemill token remove removes it.
version: 1
`

// Add adds a token to an access file, and creates a missing file. The rest of the file does not
// change. The file is replaced atomically.
func Add(path string, t config.Token) error {
	if err := checkToken(t); err != nil {
		return err
	}
	return editFile(path, true, func(p *yamlPage, before *config.Access) error {
		if old, exists := before.Token(t.Name); exists {
			return fmt.Errorf("%w in line %d", ErrExists, old.Line)
		}
		return p.addEntry(t)
	}, func(tokens []config.Token) []config.Token { return append(slices.Clone(tokens), t) })
}

// Replace changes a token in its place and returns the new token. Fields that the change function
// does not set keep their values, so that a caller's new token has the same rights as the old one.
func Replace(path, name string, change func(*config.Token) error) (config.Token, error) {
	var t config.Token
	err := editFile(path, false, func(p *yamlPage, before *config.Access) error {
		var exists bool
		if t, exists = before.Token(name); !exists {
			return fmt.Errorf("%w %s", ErrNotThere, name)
		}
		if err := errors.Join(change(&t), checkToken(t)); err != nil {
			return err
		}
		return p.replaceEntry(t)
	}, func(tokens []config.Token) []config.Token { return append(without(tokens, name), t) })
	return t, err
}

// Remove removes a token from an access file.
func Remove(path, name string) error {
	return editFile(path, false, func(p *yamlPage, before *config.Access) error {
		if _, exists := before.Token(name); !exists {
			return fmt.Errorf("%w %s", ErrNotThere, name)
		}
		return p.removeEntry(name)
	}, func(tokens []config.Token) []config.Token { return without(tokens, name) })
}

func without(tokens []config.Token, name string) []config.Token {
	return slices.DeleteFunc(slices.Clone(tokens), func(t config.Token) bool { return t.Name == name })
}

// editFile changes a file's text and parses the result. The result is written only if it differs
// from the old content in nothing but the wanted tokens. So a file with an odd layout is never
// damaged.
func editFile(path string, create bool, change func(*yamlPage, *config.Access) error, want func([]config.Token) []config.Token) (err error) {
	d, err := openDraft(path)
	if err != nil {
		return fmt.Errorf("change %s: %w", path, err)
	}
	defer func() { err = errors.Join(err, d.close()) }()
	text, err := os.ReadFile(d.path)
	if errors.Is(err, fs.ErrNotExist) && create {
		text, err = []byte(newFile), nil
	}
	if err != nil {
		return fmt.Errorf("change access file: %w", err)
	}
	before, err := config.ParseAccess(path, text)
	if err != nil {
		return fmt.Errorf("%s is not valid; correct it first:\n%w", path, err)
	}
	p, err := readPage(text)
	if err == nil {
		err = change(p, before)
	}
	if err != nil {
		return fmt.Errorf("change %s: %w", path, err)
	}
	after, err := config.ParseAccess(path, p.text())
	if err != nil && before.Teams != nil {
		return fmt.Errorf("change %s: a team of the file names the token; change the team first:\n%w", path, err)
	}
	if err != nil || !isSameContent(after, before, want(before.Tokens)) {
		return fmt.Errorf("change %s: %w", path, errByHand)
	}
	return d.write(p.text())
}

// isSameContent reports whether two versions of a file differ in nothing but the wanted tokens.
func isSameContent(after, before *config.Access, want []config.Token) bool {
	if !reflect.DeepEqual(after.OIDC, before.OIDC) || !reflect.DeepEqual(after.Teams, before.Teams) || len(after.Tokens) != len(want) {
		return false
	}
	for _, w := range want {
		got, ok := after.Token(w.Name)
		got.Line, w.Line = 0, 0
		if !ok || !got.Expires.Equal(w.Expires) || !bytes.Equal(got.Hash[:], w.Hash[:]) || !reflect.DeepEqual(got.Rights, w.Rights) {
			return false
		}
	}
	return true
}

// draftFile is the file that will replace the access file. The draft is in the same folder and
// always has the same name. So of two concurrent changes, the second fails instead of overwriting
// the first.
type draftFile struct {
	path  string // path of the access file with links resolved
	file  *os.File
	moved bool // whether the draft has replaced the file; a draft that exists then belongs to another change
}

func openDraft(path string) (*draftFile, error) {
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target
	}
	f, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("another process is changing it: %s.new exists; if no process is, remove that file", path)
	}
	if err != nil {
		return nil, err
	}
	return &draftFile{path: path, file: f}, nil
}

// write replaces the access file by the draft, which gets the file's owner and permissions.
func (d *draftFile) write(text []byte) error {
	info, err := os.Stat(d.path)
	if err == nil {
		err = errors.Join(keepOwner(d.file, info), d.file.Chmod(info.Mode().Perm()))
	} else if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err == nil {
		_, err = d.file.Write(text)
	}
	if err == nil {
		err = d.file.Sync()
	}
	if err == nil {
		err = os.Rename(d.file.Name(), d.path)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", d.path, err)
	}
	d.moved = true
	return nil
}

// close removes the draft unless the draft has replaced the access file.
func (d *draftFile) close() error {
	err := d.file.Close()
	if !d.moved {
		err = errors.Join(err, os.Remove(d.file.Name()))
	}
	return err
}

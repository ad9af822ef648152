package deliver

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync"

	"tidemill.dev/config"
)

// secretFile is a file that a trigger's credentials name. It is opened when it
// is first needed: one that is missing is its trigger's trouble, and no other's.
type secretFile struct {
	field string // of the config, such as bearerFile
	path  string

	mu   sync.Mutex
	file *config.SecretFile
}

func newSecretFile(field, path string) *secretFile {
	if path == "" {
		return nil
	}
	return &secretFile{field: field, path: path}
}

// get is the file's content as it is now. Where it cannot be read any more, the
// last content counts: a secret that is being replaced may be away for a
// moment, and the subscriber says if it is too old.
func (f *secretFile) get() (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.file == nil {
		file, err := config.OpenSecret(f.path)
		if err != nil {
			return "", f.trouble(err)
		}
		f.file = file
	}
	secret, _ := f.file.Get() // with an error it is the last that could be read
	return secret.Reveal(), nil
}

// trouble names the field and not the path. Dead letters are read by many, and
// where somebody gave the secret in place of its file, the path is the secret.
func (f *secretFile) trouble(err error) error {
	if cause := new(fs.PathError); errors.As(err, &cause) {
		err = cause.Err
	}
	said := strings.ReplaceAll(err.Error(), f.path, "the file")
	return fmt.Errorf("read the trigger's %s: %s: give the path of a file that the dispatcher can read", f.field, said)
}

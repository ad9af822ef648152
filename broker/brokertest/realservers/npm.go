package realservers

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
)

// The tests in a browser need these packages of npm, which package-lock.json pins by their digests.
// After a change of package.json, npm install --package-lock-only in that folder writes it again.
var (
	//go:embed npm/package.json
	browserPackages []byte // read only
	//go:embed npm/package-lock.json
	browserLock []byte // read only
)

// BrowserModules returns a folder node_modules with axe-core, which finds faults of accessibility, and
// typescript, which checks types. The first call downloads them. No script of a package is run.
func BrowserModules(ctx context.Context) (string, error) {
	dir, err := cachedFolder(fmt.Sprintf("npm-%x", sha256.Sum256(browserLock))[:16], func(dir string) error {
		for name, text := range map[string][]byte{"package.json": browserPackages, "package-lock.json": browserLock} {
			if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
				return fmt.Errorf("write %s for the tests in a browser: %w", name, err)
			}
		}
		return install(ctx, dir, "npm", "ci", "--silent", "--ignore-scripts", "--no-audit", "--no-fund")
	})
	return filepath.Join(dir, "node_modules"), err
}

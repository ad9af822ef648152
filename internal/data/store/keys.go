package store

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"tidemill.dev"
)

// What lies where. A dataset's name may have slashes, and one dataset's may
// begin with another's; the segment "_", which no name has, ends it.
const (
	objectsPrefix  = "objects/"
	treesPrefix    = "trees/"
	refsPrefix     = "refs/"    // DATASET/_/BRANCH/NUMBER: commits, the truth
	headsPrefix    = "heads/"   // DATASET/_/BRANCH: a number at or below the newest
	idsPrefix      = "ids/"     // DATASET/_/ID: where the commit is, if it is
	intentsPrefix  = "intents/" // ID: a commit that may not be announced yet
	runsPrefix     = "runs/"
	condemnsPrefix = "condemned/" // what a collection is about to remove
	notesPrefix    = "notes/"     // NAME: how far somebody has come, who goes on after a crash

	nameEnd = "/_/"
	tempEnd = ".tmp" // what a writer has not finished, on a folder
)

const maxPath = 1024

func checkBranch(dataset, branch string) error {
	if err := tidemill.CheckDataset(dataset); err != nil {
		return invalid("dataset %q: %v", dataset, err)
	}
	if err := tidemill.CheckLabel(branch); err != nil {
		return invalid("branch %q: %v", branch, err)
	}
	return nil
}

func checkRun(run string) error {
	if err := tidemill.CheckLabel(run); err != nil {
		return invalid("run %q: %v", run, err)
	}
	return nil
}

// CheckPath says what is wrong with a file's path, if anything.
func CheckPath(path string) error {
	switch {
	case path == "":
		return invalid("a file without a path cannot be kept")
	case len(path) > maxPath:
		return invalid("path %.40q… is longer than %d bytes", path, maxPath)
	case !utf8.ValidString(path) || strings.ContainsRune(path, 0):
		return invalid("path %q is no text in UTF-8 without NUL", path)
	}
	for segment := range strings.SplitSeq(path, "/") {
		if segment == "" || segment == "." || segment == ".." {
			return invalid("path %q is not relative and plain: it has a segment %q", path, segment)
		}
	}
	return nil
}

func checkDigest(digest string) error {
	if _, ok := rawDigest(digest); !ok {
		return invalid("digest %q is no SHA-256 in lower-case hex", digest)
	}
	return nil
}

func rawDigest(digest string) (raw [32]byte, ok bool) {
	if len(digest) != 64 || strings.ToLower(digest) != digest {
		return raw, false
	}
	_, err := hex.Decode(raw[:], []byte(digest))
	return raw, err == nil
}

func objectKey(digest string) string { return objectsPrefix + digest[:2] + "/" + digest }

func treeKey(digest string) string { return treesPrefix + digest[:2] + "/" + digest }

func headKey(dataset, branch string) string { return headsPrefix + dataset + nameEnd + branch }

func refKey(dataset, branch string, number int64) string {
	return fmt.Sprintf("%s%s%s%s/%012d", refsPrefix, dataset, nameEnd, branch, number)
}

func idKey(dataset, id string) string { return idsPrefix + dataset + nameEnd + id }

func intentKey(id string) string { return intentsPrefix + id }

func logKey(run string, attempt, seq int) string {
	return fmt.Sprintf("%s%s/log-%04d-%08d", runsPrefix, run, attempt, seq)
}

func checkpointKey(run string, attempt int) string {
	return checkpointsOf(run) + fmt.Sprintf("%04d", attempt)
}

func checkpointsOf(run string) string { return runsPrefix + run + "/checkpoints/" }

// cutCheckpoint is the run and the attempt of a checkpoint's key.
func cutCheckpoint(key string) (run string, attempt int, ok bool) {
	run, text, found := strings.Cut(strings.TrimPrefix(key, runsPrefix), "/checkpoints/")
	attempt, err := strconv.Atoi(text)
	return run, attempt, found && err == nil
}

// cutName takes the key of a head or an id apart: the dataset, and what is behind.
func cutName(key, prefix string) (dataset, rest string, ok bool) {
	return strings.Cut(strings.TrimPrefix(key, prefix), nameEnd)
}

// isTemp reports whether a key is what a writer on a folder has not finished.
func isTemp(key string) bool { return strings.HasSuffix(key, tempEnd) }

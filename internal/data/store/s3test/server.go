package s3test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// The credentials that the server accepts, its one bucket, and the number of keys in a page of a listing.
const (
	AccessKey = "me"
	SecretKey = "hunter2"
	Bucket    = "bucket"
	Page      = 7
)

// Server is the server. Its fields are set before its first request, or between two requests.
type Server struct {
	// Refuse may return a status and an error code instead of an answer. It is called by one goroutine at a time.
	Refuse   func(r *http.Request) (int, string)
	Requests []string // method and path of each request

	lock   sync.Mutex
	values map[string]value
	parts  map[string]map[int][]byte // by upload
	later  time.Duration             // lead of its clock
}

type value struct {
	data []byte
	time time.Time
}

// New returns a server with an empty bucket.
func New() *Server {
	return &Server{values: map[string]value{}, parts: map[string]map[int][]byte{}}
}

// Keys returns the keys of the bucket, in order.
func (s *Server) Keys() []string {
	s.lock.Lock()
	defer s.lock.Unlock()
	return slices.Sorted(maps.Keys(s.values))
}

// Uploads returns the number of uploads in parts that are not finished.
func (s *Server) Uploads() int {
	s.lock.Lock()
	defer s.lock.Unlock()
	return len(s.parts)
}

// Ahead moves the server's clock.
func (s *Server) Ahead(by time.Duration) {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.later = by
}

// ServeHTTP answers a request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		s.fail(w, r, http.StatusBadRequest, "IncompleteBody")
		return
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	s.Requests = append(s.Requests, r.Method+" "+r.URL.Path)
	key, inBucket := strings.CutPrefix(r.URL.Path, "/"+Bucket+"/")
	sum := sha256.Sum256(body)
	if s.Refuse != nil {
		if status, code := s.Refuse(r); status != 0 {
			s.fail(w, r, status, code)
			return
		}
	}
	switch q := r.URL.Query(); {
	case !inBucket:
		s.fail(w, r, http.StatusNotFound, "NoSuchBucket")
	case !strings.Contains(r.Header.Get("Authorization"), "Credential="+AccessKey+"/") && !q.Has("X-Amz-Signature"):
		s.fail(w, r, http.StatusForbidden, "InvalidAccessKeyId")
	case len(body) > 0 && r.Method == http.MethodPut && r.Header.Get("X-Amz-Content-Sha256") != hex.EncodeToString(sum[:]):
		s.fail(w, r, http.StatusBadRequest, "XAmzContentSHA256Mismatch")
	case key == "" && q.Get("list-type") == "2":
		s.list(w, q)
	case q.Has("uploads") || q.Has("uploadId"):
		s.upload(w, r, key, body)
	default:
		s.one(w, r, key, body)
	}
}

// one serves a request for one key.
func (s *Server) one(w http.ResponseWriter, r *http.Request, key string, body []byte) {
	v, there := s.values[key]
	switch {
	case r.Method == http.MethodPut && r.Header.Get("If-None-Match") == "*" && there:
		s.fail(w, r, http.StatusPreconditionFailed, "PreconditionFailed")
	case r.Method == http.MethodPut:
		s.put(key, body)
	case r.Method == http.MethodDelete:
		delete(s.values, key)
		w.WriteHeader(http.StatusNoContent)
	case !there:
		s.fail(w, r, http.StatusNotFound, "NoSuchKey")
	default:
		w.Header().Set("Content-Length", strconv.Itoa(len(v.data)))
		w.Header().Set("Last-Modified", v.time.UTC().Format(http.TimeFormat))
		_, _ = w.Write(v.data)
	}
}

func (s *Server) put(key string, data []byte) {
	s.values[key] = value{data, time.Now().Add(s.later)}
}

// upload serves an upload in parts.
func (s *Server) upload(w http.ResponseWriter, r *http.Request, key string, body []byte) {
	id := r.URL.Query().Get("uploadId")
	switch {
	case r.Method == http.MethodPost && id == "":
		id = fmt.Sprint("upload-", len(s.Requests))
		s.parts[id] = map[int][]byte{}
		fmt.Fprintf(w, "<InitiateMultipartUploadResult><UploadId>%s</UploadId></InitiateMultipartUploadResult>", id)
	case s.parts[id] == nil:
		s.fail(w, r, http.StatusNotFound, "NoSuchUpload")
	case r.Method == http.MethodPut:
		n, _ := strconv.Atoi(r.URL.Query().Get("partNumber"))
		s.parts[id][n] = body
		w.Header().Set("ETag", `"part"`)
	case r.Method == http.MethodDelete:
		delete(s.parts, id)
		w.WriteHeader(http.StatusNoContent)
	default:
		var whole []byte
		for n := range len(s.parts[id]) {
			whole = append(whole, s.parts[id][n+1]...)
		}
		s.put(key, whole)
		delete(s.parts, id)
		fmt.Fprint(w, "<CompleteMultipartUploadResult><Bucket>bucket</Bucket><ETag>x</ETag></CompleteMultipartUploadResult>")
	}
}

type entry struct {
	Key, LastModified string
	Size              int
}

func (s *Server) list(w http.ResponseWriter, q url.Values) {
	var page struct {
		XMLName               xml.Name `xml:"ListBucketResult"`
		IsTruncated           bool
		NextContinuationToken string
		Contents              []entry
	}
	for _, key := range slices.Sorted(maps.Keys(s.values)) {
		if !strings.HasPrefix(key, q.Get("prefix")) || key <= q.Get("continuation-token") {
			continue
		}
		if len(page.Contents) == Page {
			page.IsTruncated, page.NextContinuationToken = true, page.Contents[Page-1].Key
			break
		}
		v := s.values[key]
		page.Contents = append(page.Contents, entry{key, v.time.UTC().Format(time.RFC3339Nano), len(v.data)})
	}
	_ = xml.NewEncoder(w).Encode(page) // fails only if the client has left
}

func (s *Server) fail(w http.ResponseWriter, r *http.Request, status int, code string) {
	if status == http.StatusMovedPermanently {
		w.Header().Set("X-Amz-Bucket-Region", "eu-2")
	}
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		fmt.Fprintf(w, "<Error><Code>%s</Code><Message>It is %s.</Message></Error>", code, code)
	}
}

package disk

import (
	"fmt"
	"regexp"
	"strings"
)

// scheme is how a URL begins. A Windows drive has one letter and no scheme.
var scheme = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9+.-]+://`)

// CheckLocal refuses a URL where a path of the local file system is wanted: taken for a
// path, s3://bucket/run is a folder s3: in the current one.
func CheckLocal(path string) error {
	begin := scheme.FindString(path)
	switch {
	case begin == "":
		return nil
	case strings.EqualFold(begin, "file://"):
		return fmt.Errorf("%q is a URL, and octet takes paths: leave out file://", path)
	}
	return fmt.Errorf("%q is a URL, and octet reads and writes local files alone: mount %s or download its files, and name the path", path, begin)
}

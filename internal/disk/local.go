package disk

import (
	"fmt"
	"regexp"
	"strings"
)

// scheme matches the beginning of a URL. It needs two letters, since C:// is a Windows drive.
var scheme = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9+.-]+://`)

// CheckLocal returns an error for a URL in place of a local path: as a path, s3://bucket/run
// would be a folder s3: in the current one.
func CheckLocal(path string) error {
	begin := scheme.FindString(path)
	switch {
	case begin == "":
		return nil
	case strings.EqualFold(begin, "file://"):
		return fmt.Errorf("%q is a URL, and octet takes paths: omit file://", path)
	}
	return fmt.Errorf("%q is a URL, and octet reads and writes local files only: mount %s or download its files, and give the path", path, begin)
}

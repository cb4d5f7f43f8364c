package disk

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCheckLocal(t *testing.T) {
	for _, path := range []string{"", "runs/one", "/data/a:b", `C:\text`, "C:/text", "C://text", "./s3://bucket", "a b://c", "://x", "s3:bucket", "~/notes"} {
		require.NoError(t, CheckLocal(path), path)
	}
	for path, want := range map[string]string{
		"s3://bucket/run": "mount s3:// or download", "https://example.com/a.txt": "mount https:// or download",
		"hf://org/model": "mount hf:// or download", "abfss+x.y-z://a": "download", "file:///tmp/a": "omit file://", "FILE://a": "omit file://",
	} {
		err := CheckLocal(path)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, `"`+path+`" is a URL`)
	}
}

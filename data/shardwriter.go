package data

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"slices"
)

// ShardHeaderBytes is the size of a shard's header.
const ShardHeaderBytes = shardHeader

// MaxShardTokens is how many ids a shard can have: its header holds their number as an int32.
const MaxShardTokens = math.MaxInt32

// ShardWidth returns the bytes of an id in the shards of a vocabulary: 2 up to 65536 ids, else 4.
func ShardWidth(vocab int) int {
	if vocab <= maxNarrow {
		return idBytes
	}
	return wideBytes
}

// ShardHeader returns the header of a shard of ids, each of which has width bytes, as ShardWidth
// returns them.
func ShardHeader(width int, ids int64) []byte {
	header := make([]byte, shardHeader)
	magic, version := uint32(shardMagic), uint32(shardVersion)
	if width == wideBytes {
		magic, version = wideMagic, wideVersion
	}
	binary.LittleEndian.PutUint32(header[0:], magic)
	binary.LittleEndian.PutUint32(header[4:], version)
	binary.LittleEndian.PutUint32(header[8:], uint32(ids))
	return header
}

// ParseShardHeader returns the bytes of an id and the number of ids of a shard that begins with
// header and has size bytes.
func ParseShardHeader(header []byte, size int64) (width int, ids int64, err error) {
	if len(header) < shardHeader {
		return 0, 0, fmt.Errorf("it is truncated or not a shard: it has %d bytes, its header needs %d", size, shardHeader)
	}
	magic, version := int32(binary.LittleEndian.Uint32(header)), int32(binary.LittleEndian.Uint32(header[4:]))
	ids = int64(int32(binary.LittleEndian.Uint32(header[8:])))
	width, known := idBytes, int32(shardVersion)
	if magic == wideMagic {
		width, known = wideBytes, wideVersion
	}
	switch need := shardHeader + ids*int64(width); {
	case magic != shardMagic && magic != wideMagic:
		return 0, 0, fmt.Errorf("it begins with %d instead of %d or %d: rename it if it is text; ids need llm.c's header of 1024 bytes, which files of nanoGPT and Megatron-LM lack", magic, shardMagic, wideMagic)
	case version != known:
		return 0, 0, fmt.Errorf("it has version %d: octet reads version %d of files that begin with %d", version, known, magic)
	case ids <= 0:
		return 0, 0, fmt.Errorf("it has %d ids according to its header: leave it out or write it again", ids)
	case width == idBytes && size == shardHeader+ids*wideBytes:
		return 0, 0, fmt.Errorf("it holds %d 32-bit ids after a header for 16-bit ids: write it again with the magic number %d and version %d", ids, wideMagic, wideVersion)
	case size != need:
		return 0, 0, fmt.Errorf("it has %d bytes, but the %d ids of its header need %d: copy or write it again", size, ids, need)
	}
	return width, ids, nil
}

// AppendIDs appends ids, each of which has width bytes, to the bytes of a shard.
func AppendIDs(dst []byte, ids []int32, width int) []byte {
	dst = slices.Grow(dst, len(ids)*width)
	for _, id := range ids {
		if width == idBytes {
			dst = binary.LittleEndian.AppendUint16(dst, uint16(id))
		} else {
			dst = binary.LittleEndian.AppendUint32(dst, uint32(id))
		}
	}
	return dst
}

// ShardID returns an id of the bytes of a shard.
func ShardID(raw []byte, width int) int32 {
	if width == idBytes {
		return int32(binary.LittleEndian.Uint16(raw))
	}
	return int32(binary.LittleEndian.Uint32(raw))
}

// WriteShard writes ids as one shard in a format of llm.c: ids of 16 or 32 bits after a header of 1024
// bytes.
func WriteShard[ID uint16 | uint32](w io.Writer, ids []ID) error {
	if len(ids) == 0 || len(ids) > MaxShardTokens {
		return fmt.Errorf("data: a shard must have 1 to %d ids, not %d", MaxShardTokens, len(ids))
	}
	width := binary.Size(ids[0])
	_, err := w.Write(ShardHeader(width, int64(len(ids))))
	for part := range slices.Chunk(ids, scanChunk/width) {
		if err == nil {
			err = binary.Write(w, binary.LittleEndian, part)
		}
	}
	if err != nil {
		return fmt.Errorf("data: writing a shard: %w", err)
	}
	return nil
}

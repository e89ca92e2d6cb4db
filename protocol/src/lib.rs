//! The wire protocol of stentor: frames, their codec, versions and error codes

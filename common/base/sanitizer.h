/* What this is built with. Sanitizers know one stack a thread and one table of descriptors a process; where a program
 * has others, it has none in such a build. 0 or 1. */
#ifndef COMMON_BASE_SANITIZER_H
#define COMMON_BASE_SANITIZER_H

#if defined(__has_feature) /* clang's word for it */
#define SANITIZER_HAS(feature) __has_feature(feature)
#else
#define SANITIZER_HAS(feature) 0
#endif

#if defined(__SANITIZE_ADDRESS__) || SANITIZER_HAS(address_sanitizer)
#define HAS_ADDRESS_SANITIZER 1
#else
#define HAS_ADDRESS_SANITIZER 0
#endif

#if defined(__SANITIZE_THREAD__) || SANITIZER_HAS(thread_sanitizer)
#define HAS_THREAD_SANITIZER 1
#else
#define HAS_THREAD_SANITIZER 0
#endif

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * unsupported.c - see runtime.h: functions that a program may link but that are not supported:
 * mipmaps, rare nodes of graphs, other processes and devices, graphics.
 *
 * Invariant: each says its name on stderr and returns cudaErrorNotSupported.
 */
#include "runtime/runtime.h"

/* clang-format off */
#define UNSUPPORTED(X)                                                                             \
    X(cudaArrayGetMemoryRequirements) X(cudaArrayGetPlane) X(cudaArrayGetSparseProperties)         \
    X(cudaDestroyExternalMemory) X(cudaDestroyExternalSemaphore)                                   \
    X(cudaDeviceFlushGPUDirectRDMAWrites) X(cudaDeviceGetHostAtomicCapabilities)                   \
    X(cudaDeviceGetP2PAtomicCapabilities) X(cudaDeviceGetSharedMemConfig)                          \
    X(cudaDeviceRegisterAsyncNotification) X(cudaDeviceSetSharedMemConfig)                         \
    X(cudaDeviceUnregisterAsyncNotification) X(cudaExternalMemoryGetMappedBuffer)                  \
    X(cudaExternalMemoryGetMappedMipmappedArray) X(cudaFreeMipmappedArray) X(cudaFuncGetParamInfo) \
    X(cudaFuncSetSharedMemConfig) X(cudaGetExportTable) X(cudaGetMipmappedArrayLevel)              \
    X(cudaGetTextureObjectResourceViewDesc) X(cudaGraphAddExternalSemaphoresSignalNode)            \
    X(cudaGraphAddExternalSemaphoresWaitNode) X(cudaGraphChildGraphNodeGetGraph)                   \
    X(cudaGraphDebugDotPrint) X(cudaGraphDestroyNode)          \
    X(cudaGraphEventRecordNodeGetEvent) X(cudaGraphEventRecordNodeSetEvent)                        \
    X(cudaGraphEventWaitNodeGetEvent) X(cudaGraphEventWaitNodeSetEvent)                            \
    X(cudaGraphExecChildGraphNodeSetParams) X(cudaGraphExecEventRecordNodeSetEvent)                \
    X(cudaGraphExecEventWaitNodeSetEvent) X(cudaGraphExecExternalSemaphoresSignalNodeSetParams)    \
    X(cudaGraphExecExternalSemaphoresWaitNodeSetParams) X(cudaGraphExecGetFlags)                   \
    X(cudaGraphExecMemcpyNodeSetParamsFromSymbol) X(cudaGraphExecMemcpyNodeSetParamsToSymbol)      \
    X(cudaGraphExecNodeSetParams) X(cudaGraphExternalSemaphoresSignalNodeGetParams)                \
    X(cudaGraphExternalSemaphoresSignalNodeSetParams)                                              \
    X(cudaGraphExternalSemaphoresWaitNodeGetParams) X(cudaGraphExternalSemaphoresWaitNodeSetParams)\
    X(cudaGraphGetEdges) X(cudaGraphGetRootNodes) X(cudaGraphHostNodeGetParams)                    \
    X(cudaGraphHostNodeSetParams) X(cudaGraphInstantiateWithParams)                                \
    X(cudaGraphKernelNodeCopyAttributes) X(cudaGraphKernelNodeGetAttribute)                        \
    X(cudaGraphKernelNodeGetParams) X(cudaGraphKernelNodeSetAttribute)                             \
    X(cudaGraphKernelNodeSetParams) X(cudaGraphMemAllocNodeGetParams)                              \
    X(cudaGraphMemFreeNodeGetParams) X(cudaGraphMemcpyNodeGetParams)                               \
    X(cudaGraphMemcpyNodeSetParams) X(cudaGraphMemcpyNodeSetParams1D)                              \
    X(cudaGraphMemcpyNodeSetParamsFromSymbol) X(cudaGraphMemcpyNodeSetParamsToSymbol)              \
    X(cudaGraphMemsetNodeGetParams) X(cudaGraphMemsetNodeSetParams) X(cudaGraphNodeFindInClone)    \
    X(cudaGraphNodeGetDependencies) X(cudaGraphNodeGetDependentNodes) X(cudaGraphNodeGetEnabled)   \
    X(cudaGraphNodeGetType) X(cudaGraphNodeSetEnabled) X(cudaGraphNodeSetParams)                   \
    X(cudaGraphReleaseUserObject) X(cudaGraphRemoveDependencies) X(cudaGraphRetainUserObject)      \
    X(cudaGraphicsGLRegisterBuffer) X(cudaGraphicsGLRegisterImage) X(cudaGraphicsMapResources)     \
    X(cudaGraphicsResourceGetMappedMipmappedArray) X(cudaGraphicsResourceGetMappedPointer)         \
    X(cudaGraphicsResourceSetMapFlags) X(cudaGraphicsSubResourceGetMappedArray)                    \
    X(cudaGraphicsUnmapResources) X(cudaGraphicsUnregisterResource) X(cudaImportExternalMemory)    \
    X(cudaImportExternalSemaphore) X(cudaIpcCloseMemHandle) X(cudaIpcGetEventHandle)               \
    X(cudaIpcGetMemHandle) X(cudaIpcOpenEventHandle) X(cudaIpcOpenMemHandle)                       \
    X(cudaKernelSetAttributeForDevice) X(cudaLibraryEnumerateKernels) X(cudaLibraryGetGlobal)      \
    X(cudaLibraryGetKernel) X(cudaLibraryGetKernelCount) X(cudaLibraryGetManaged)                  \
    X(cudaLibraryGetUnifiedFunction) X(cudaLibraryLoadData) X(cudaLibraryLoadFromFile)             \
    X(cudaLibraryUnload) X(cudaLogsCurrent) X(cudaLogsDumpToFile) X(cudaLogsDumpToMemory)          \
    X(cudaLogsRegisterCallback) X(cudaLogsUnregisterCallback) X(cudaMallocMipmappedArray)          \
    X(cudaMemDiscardAndPrefetchBatchAsync) X(cudaMemDiscardBatchAsync) X(cudaMemGetMemPool)        \
    X(cudaMemPoolExportPointer) X(cudaMemPoolExportToShareableHandle)                              \
    X(cudaMemPoolImportFromShareableHandle) X(cudaMemPoolImportPointer)                            \
    X(cudaMemPrefetchBatchAsync) X(cudaMemRangeGetAttribute) X(cudaMemRangeGetAttributes)          \
    X(cudaMemSetMemPool) X(cudaMemcpy3DBatchAsync) X(cudaMemcpy3DPeer) X(cudaMemcpy3DPeerAsync)    \
    X(cudaMemcpyBatchAsync) X(cudaMipmappedArrayGetMemoryRequirements)                             \
    X(cudaMipmappedArrayGetSparseProperties) X(cudaSignalExternalSemaphoresAsync)                  \
    X(cudaStreamCopyAttributes)  \
    X(cudaUserObjectCreate) X(cudaUserObjectRelease) X(cudaUserObjectRetain)                       \
    X(cudaWaitExternalSemaphoresAsync)
/* clang-format on */

#define DEFINE(name)                                                                               \
    RT int name(void) {                                                                            \
        rt_say("%s is not supported", #name);                                                      \
        return rt_keep(RT_NOT_SUPPORTED);                                                          \
    }
UNSUPPORTED(DEFINE)
